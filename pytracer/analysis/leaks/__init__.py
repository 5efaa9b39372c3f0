"""The search for leaks in the files of a run: `find_leaks` and `LeakReport`."""
