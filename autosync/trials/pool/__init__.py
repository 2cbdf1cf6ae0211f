"""Worker processes: started, asked, watched and killed together; one pool a machine measures.

May import `worker` and what all of trials share."""
