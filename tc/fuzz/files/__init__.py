"""Files that lie: a corpus of them, and a search for more that reach lines of the readers which none has reached."""
