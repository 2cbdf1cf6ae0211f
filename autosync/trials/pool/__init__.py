"""Worker processes: started, asked, watched and killed together."""
