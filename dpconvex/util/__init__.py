"""Utilities of all rooms: checks of arguments, arrays, sums, charts, files, caches, threads, and faster imports."""
