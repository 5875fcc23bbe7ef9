"""Workers as processes of this machine, forked by a warden that never lets one escape."""
