"""Checkpoints that others have written into the bucket: found, judged by what their layout allows, fetched. Nothing is changed.

from wherry.checkpoints import foreign

for one in foreign.find("s3://my-bucket/old-run").checkpoints:
print(one.name, one.state, one.proof)
foreign.restore("s3://my-bucket/old-run", "checkpoint-500", "back")
"""

from wherry.checkpoints.foreign.finding import Found as Found, find as find, restore as restore
from wherry.checkpoints.foreign.layouts import ForeignCheckpoint as ForeignCheckpoint
