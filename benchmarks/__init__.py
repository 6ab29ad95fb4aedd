"""Real models to test and measure with (`zoo`), and the clock that compares runtimes on them (`harness`, `run`)."""
