"""One file a kind of client. They run in a process of their own (drive.py), most of them in the peers' environment."""
