"""What programs are: scalar expressions, the graph IR, the loop IR, their text, their verifiers."""
