"""The paper's Appendix B: closed forms, simulation, predictions for a profile."""
