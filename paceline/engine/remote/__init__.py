"""Workers on other machines: an agent on each starts them, and all of them talk to the driver over TCP."""
