"""Options and verbs that hands know from aws, s5cmd, rclone and gsutil, and what does the same here."""

from __future__ import annotations

_SIZES = "Sizes have units as they are; ls and du take --bytes for plain numbers."
_QUIET = "Its equal is --quiet."
_PACE = "Its equal, of verbs that move bytes, is --max-bytes-per-s."
#: Verb -> the verb that does it. Only those that wherry does not have come here.
VERBS = {
    "cancel": "discard",
    "copy": "cp",
    "del": "rm",
    "delete": "rm",
    "dir": "ls",
    "download": "get",
    "flush": "drain",
    "list": "ls",
    "move": "mv",
    "push": "put",
    "remove": "rm",
    "rename": "mv",
    "rsync": "sync",
    "upload": "put",
    "wait": "drain",
}
#: Option -> what to do instead. Only those that a verb does not have come here.
ADVICE = {
    "--acl": "Who may read an object is up to the bucket's own policy: set it there.",
    "--bwlimit": _PACE,
    "--dryrun": "Its equal is --dry-run.",
    "--endpoint-url": "It is a storage option: -o endpoint_url=URL.",
    "--force": "Its equal is --overwrite where a name is taken, and --yes where wherry asks.",
    "--human": _SIZES,
    "--human-readable": _SIZES,
    "--no-clobber": "That is how it is: what is there stays, unless --overwrite is given.",
    "--no-progress": _QUIET,
    "--no-sign-request": "It is a storage option: -o anonymous=true.",
    "--only-show-errors": _QUIET,
    "--profile": "It is a storage option: -o profile=NAME.",
    "--recursive": "All below a folder is taken as it is, or this verb takes no folders.",
    "--region": "It is a storage option: -o region=NAME.",
    "--size-only": "Files of one size are copied if the source is newer; --checksum of sync compares their bytes instead.",
}
