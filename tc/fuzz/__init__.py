"""Random models, oracles for them, and what makes a failing model small."""
