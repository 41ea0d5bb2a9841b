"""Published mechanisms and bounds to the letter, to be studied and compared with; none of them is a certificate."""
