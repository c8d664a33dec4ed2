"""The paper's Appendix B: each statement in closed form, and a simulation that confirms or refutes it."""
