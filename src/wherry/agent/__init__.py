"""The processes of a spool: the agent, its workers, and how others wake them. ``python -m wherry.agent`` starts one."""
