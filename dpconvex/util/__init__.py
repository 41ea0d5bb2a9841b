"""What every room uses: kinds of arguments, arrays and sums, what is remembered, and how imports are spared."""
