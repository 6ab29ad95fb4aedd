"""The tables of operators that random models are drawn from: one row an operator, or one way to use it."""
