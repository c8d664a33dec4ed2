"""Every equation of the paper's Appendix B against its simulation: `python -m research.theory`."""

from modeling_aligned_llava.diagnostics.instruments.tables import number, show_table
from modeling_aligned_llava.errors import UserError, run_main
from research.theory.simulation import GROUPS


def main() -> None:
    checks = [check for group in GROUPS.values() for check in group()]
    rows = [
        [
            f"{check.equation}: {check.statement}",
            number(check.predicted, 5),
            f"{check.estimate:.5f} ± {check.error:.5f}",
            "holds" if check.holds else "fails",
        ]
        for check in checks
    ]
    title = "Closed form against Monte-Carlo (± one standard error; holds: within 3)"
    show_table(title, ["Eq.", "closed form", "simulated", ""], rows)
    unexpected = [check.statement for check in checks if not check.as_expected]
    if unexpected:
        raise UserError(f"{len(unexpected)} checks contradict their closed form, such as: {unexpected[0]}")


if __name__ == "__main__":
    run_main(main)
