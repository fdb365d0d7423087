"""Running a program for a command: its processes, its signals, its terminal."""
