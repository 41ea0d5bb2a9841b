"""The core language: what expressions are read into, and what is known about their atoms."""
