"""Three examples of each verb, which its help and docs/cli.md begin with. `tests/cli/test_examples.py` runs every one."""

from __future__ import annotations

#: The words that call a verb, without ``wherry`` -> its examples. Those of the command itself stand at the empty text.
EXAMPLES: dict[str, tuple[str, str, str]] = {
    "": (
        "wherry put model.pt logs s3://my-bucket/run1/",
        "wherry get s3://my-bucket/run1/latest.pt .",
        "wherry mirror runs/7 s3://my-bucket/runs/7",
    ),
    "put": (
        "wherry put model.pt s3://my-bucket/run1/ep3.pt",
        "wherry put model.pt logs s3://my-bucket/run1/",
        "tar c logs | wherry put - s3://my-bucket/run1/logs.tar",
    ),
    "get": (
        "wherry get s3://my-bucket/run1/latest.pt .",
        "wherry get -r s3://my-bucket/run1 . --exclude '*.tmp'",
        "wherry get 's3://my-bucket/run*/*.pt' models/",
    ),
    "ls": (
        "wherry ls s3://my-bucket/run1/",
        "wherry ls -r 's3://my-bucket/run*/*.pt' --json",
        "wherry ls s3://my-bucket/run1/ | head -1",
    ),
    "du": (
        "wherry du s3://my-bucket/run1/",
        "wherry du --depth 2 s3://my-bucket",
        "wherry du -s s3://my-bucket/run1/logs s3://my-bucket/run1/latest.pt --json",
    ),
    "cat": (
        "wherry cat s3://my-bucket/run1/metrics.json",
        "wherry cat 's3://my-bucket/run1/logs/*.log' | grep loss",
        "wherry cat s3://my-bucket/runs/7/train.log | tail -1",
    ),
    "cp": (
        "wherry cp -r s3://my-bucket/run1 s3://my-bucket/backups/",
        "wherry cp 's3://my-bucket/run1/*.pt' models/",
        "wherry cp -r logs s3://my-bucket/run2/logs",
    ),
    "mv": (
        "wherry mv s3://my-bucket/run1/ep1.pt s3://my-bucket/old/",
        "wherry mv -r s3://my-bucket/run1/logs s3://my-bucket/old/",
        "wherry mv 's3://my-bucket/run1/*.pt' models/ --dry-run",
    ),
    "sync": (
        "wherry sync logs s3://my-bucket/run1/logs",
        "wherry sync s3://my-bucket/run1 back --exclude '*.tmp' --dry-run",
        "wherry sync s3://my-bucket/run1 s3://my-bucket/copies/run1 --delete --yes",
    ),
    "rm": (
        "wherry rm s3://my-bucket/run1/ep1.pt",
        "wherry rm 's3://my-bucket/run1/*.tmp' --dry-run",
        "wherry rm -r s3://my-bucket/run1/logs/ --yes",
    ),
    "status": (
        "wherry status",
        "wherry status run1/ep3.pt",
        "wherry status --check --older-than 600",
    ),
    "drain": (
        "wherry drain",
        "wherry drain --timeout 3600",
        "wherry drain --options-file keys.json",
    ),
    "retry": (
        "wherry retry 1 2",
        "wherry retry --all",
        "wherry retry --overwrite 3",
    ),
    "discard": (
        "wherry discard 1 --yes",
        "wherry discard 2 3 --yes",
        "wherry discard --all --yes",
    ),
    "agent": (
        "wherry agent",
        "wherry agent --stay --workers 4",
        "wherry agent --stay --spool scratch/spool",
    ),
    "mirror": (
        "wherry mirror runs/7 s3://my-bucket/runs/7",
        "wherry mirror status s3://my-bucket/runs/7",
        "wherry mirror verify s3://my-bucket/runs/7 runs/7",
    ),
    "mirror start": (
        "wherry mirror start runs/7 s3://my-bucket/runs/7",
        "wherry mirror runs/7 s3://my-bucket/runs/7 --writer rank0 --max-lag 10",
        "wherry mirror runs/7 s3://my-bucket/runs/7 -- bash train.sh",
    ),
    "mirror resume": (
        "wherry mirror resume runs/7 s3://my-bucket/runs/7",
        "wherry mirror resume runs/7 s3://my-bucket/runs/7 --writer rank0",
        "wherry mirror resume runs/7 s3://my-bucket/runs/7 --no-seal --json",
    ),
    "mirror status": (
        "wherry mirror status s3://my-bucket/runs/7",
        "wherry mirror status s3://my-bucket/runs/7 --json",
        "wherry mirror status s3://my-bucket/runs/7 | tail -n +2",
    ),
    "mirror verify": (
        "wherry mirror verify s3://my-bucket/runs/7",
        "wherry mirror verify s3://my-bucket/runs/7 runs/7",
        "wherry mirror verify s3://my-bucket/runs/7 --read --json",
    ),
    "mirror seal": (
        "wherry mirror seal s3://my-bucket/runs/7 --yes",
        "wherry mirror seal s3://my-bucket/runs/7 --writer rank0 --yes",
        "wherry mirror seal s3://my-bucket/runs/7 --writer rank0 --force --yes",
    ),
    "checkpoints": (
        "wherry checkpoints s3://my-bucket/project/run1",
        "wherry checkpoints restore s3://my-bucket/project/run1 back",
        "wherry checkpoints prune s3://my-bucket/project/run1 --keep-last 3 --yes",
    ),
    "checkpoints list": (
        "wherry checkpoints list s3://my-bucket/project/run1",
        "wherry checkpoints s3://my-bucket/project/run1 --json",
        "wherry checkpoints s3://my-bucket/project/run1 | grep complete",
    ),
    "checkpoints latest": (
        "wherry checkpoints latest s3://my-bucket/project/run1",
        "wherry checkpoints latest s3://my-bucket/project/run1 --json",
        'test -n "$(wherry checkpoints latest s3://my-bucket/project/run1)"',
    ),
    "checkpoints restore": (
        "wherry checkpoints restore s3://my-bucket/project/run1 back",
        "wherry checkpoints restore s3://my-bucket/project/run1 best --which best:loss",
        "wherry checkpoints restore s3://my-bucket/project/run1 at20 --step 20",
    ),
    "checkpoints verify": (
        "wherry checkpoints verify s3://my-bucket/project/run1",
        "wherry checkpoints verify s3://my-bucket/project/run1 --step 20",
        "wherry checkpoints verify s3://my-bucket/project/run1 --all --json",
    ),
    "checkpoints prune": (
        "wherry checkpoints prune s3://my-bucket/project/run1 --keep-last 3 --dry-run",
        "wherry checkpoints prune s3://my-bucket/project/run1 --keep-last 3 --yes",
        "wherry checkpoints prune s3://my-bucket/project/run1 --keep-every 20 --yes",
    ),
    "checkpoints pin": (
        "wherry checkpoints pin s3://my-bucket/project/run1 --which latest",
        "wherry checkpoints pin s3://my-bucket/project/run1 --step 20",
        "wherry checkpoints pin s3://my-bucket/project/run1 --which best:loss",
    ),
    "checkpoints unpin": (
        "wherry checkpoints unpin s3://my-bucket/project/run1 --which latest",
        "wherry checkpoints unpin s3://my-bucket/project/run1 --step 20",
        "wherry checkpoints unpin s3://my-bucket/project/run1 --which best:loss",
    ),
    "checkpoints delete": (
        "wherry checkpoints delete s3://my-bucket/project/run1 --step 10 --yes",
        "wherry checkpoints delete s3://my-bucket/project/run1 --step 20 --yes",
        "wherry checkpoints delete s3://my-bucket/project/run1 --which best:loss --yes",
    ),
    "pull": (
        "wherry pull s3://my-bucket/runs/7 copy",
        "wherry pull s3://my-bucket/runs/7 copy --follow",
        "wherry pull s3://my-bucket/runs/7 copy --follow --interval 2 --overwrite",
    ),
    "runs": (
        "wherry runs s3://my-bucket/runs",
        "wherry runs s3://my-bucket/runs --sort val/loss.min --where 'lr<1'",
        "wherry runs s3://my-bucket/runs --json | head -1",
    ),
    "plot": (
        "wherry plot s3://my-bucket/runs train/loss",
        "wherry plot s3://my-bucket/runs '*loss' --log --smooth 50",
        "wherry plot s3://my-bucket/runs 'val/*' --runs 'a*' --x relative",
    ),
    "report": (
        "wherry report s3://my-bucket/runs -o report.html",
        "wherry report s3://my-bucket/runs -o few.html --runs 'a*' --keys '*/loss'",
        "wherry report s3://my-bucket/runs -o s3://my-bucket/reports/",
    ),
    "ui": (
        "wherry ui s3://my-bucket/runs",
        "wherry ui s3://my-bucket/runs --no-open",
        "wherry ui s3://my-bucket/runs --token --no-open",
    ),
    "doctor": (
        "wherry doctor",
        "wherry doctor s3://my-bucket/run1",
        "wherry doctor --clean",
    ),
    "demo": (
        "wherry demo",
        "wherry demo --keep",
        "wherry demo --uri s3://my-bucket/demo",
    ),
}
