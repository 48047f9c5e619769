"""``wherry demo`` on an S3 server that is started for it and on a local folder: ``PYTHONPATH=tests python -m servers.demo``."""

from __future__ import annotations

import sys

from servers.real import fast_folder, seaweedfs
from wherry.demo.demo import run


def main() -> int:
    """Run the demo; its exit code."""
    with fast_folder() as data, fast_folder() as bucket, seaweedfs(data) as server:
        print("Destinations: an S3 server (SeaweedFS, started for this demo) and a local folder", flush=True)
        return run([(f"s3://{server.bucket}/demo", server.options), (str(bucket), {})])


if __name__ == "__main__":
    sys.exit(main())
