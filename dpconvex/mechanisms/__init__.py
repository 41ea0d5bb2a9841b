"""Private mechanisms: how much noise the bounds call for, and the certificate that says so."""
