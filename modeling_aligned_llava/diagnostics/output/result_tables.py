"""The table of each measurement, printed and, with `out`, written as Markdown; the paper's numbers beside ours."""

from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.measure.attention import ATTENTION_NUMBERS
from modeling_aligned_llava.diagnostics.measure.prediction import predicted_rotation
from modeling_aligned_llava.diagnostics.measure.verdict import verdict
from modeling_aligned_llava.diagnostics.output.tables import PAPER, number, paper_row, show_table, spread


def show_norms(profile: dict[str, Any], out: Path | None = None) -> None:
    """Table 2: the norms at every stage."""
    paper = paper_row("projectors", profile["model"])
    beside = {
        "connector input": paper.get("before"),
        "visual tokens at layer 0": paper.get("after"),
        "text embeddings": {"mean": paper["text"], "std": None} if paper else None,
    }
    rows = []
    for where, norms in profile["norms"].items():
        low, high = norms.get("mean_ci95", (None, None))
        theirs = beside.get(where)
        rows.append(
            [
                where,
                spread(norms["mean"], norms["std"]),
                "-" if low is None else f"[{low:.4f}, {high:.4f}]",
                number(norms["median"]),
                f"{100 * norms['outlier_share']:.1f} %",
                str(norms["count"]),
                spread(theirs["mean"], theirs["std"], 2) if theirs else "-",
            ]
        )
    heads = ["where", "mean ± std over tokens", "95 % over images", "median", "> 5 x median", "tokens", "paper"]
    show_table(f"{profile['model']}: L2 norms", heads, rows, out)


def show_verdict(profile: dict[str, Any]) -> None:
    """Whether the visual tokens are inert, and what that means, in a few lines."""
    found = verdict(profile)
    lines = found["lines"] if found else ["No image had both visual tokens and text: there is no verdict."]
    print("\n".join([f"{profile['model']}, {profile['images']} images:", *(f"  {line}" for line in lines)]))  # noqa: T201


def show_encoders(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Table 1: every output of every vision encoder."""
    rows = []
    for model, columns in found.items():
        paper = paper_row("encoders", model)
        for name, norms in columns.items():
            if name != "dim":
                cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
                theirs = spread(paper.get("mean"), paper.get("std"), 2)
                rows.append([f"{model}: {name}", str(columns["dim"]), *cells, theirs])
    heads = ["encoder", "dimension", "mean ± std over tokens", "median", "tokens", "paper"]
    show_table("Norms of vision encoder outputs (Table 1)", heads, rows, out)


def show_embeddings(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Tables 6-8: norms of the embedding rows, and the largest rows of each model; `out` is a folder."""
    rows = []
    for model, tables in found.items():
        paper = paper_row("embeddings", model)
        for name in ("module output", "stored rows"):
            norms = tables[name]
            counts = [str(norms.get(key, "-")) for key in ("count", "zero_rows", "untrained_rows", "initial_rows")]
            cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), *counts]
            rows.append([f"{model}: {name}", *cells, spread(paper.get("mean"), paper.get("std"))])
    heads = ["embedding", "mean ± std over rows", "median", "rows", "zero", "untrained", "at initial scale", "paper"]
    show_table("Norms of text embeddings, non-zero rows (Eq. 11, Table 6)", heads, rows, out and out / "embeddings.md")
    for position, (model, tables) in enumerate(found.items()):
        first = paper_row("largest_rows", model)
        rows = [
            [
                str(rank),
                row["token"],
                str(row["id"]),
                number(row["norm"]),
                f"{first.get('token', '')} {number(first['norm'])}" if rank == 1 and first else "-",
            ]
            for rank, row in enumerate(tables["largest"], 1)
        ]
        path = out and out / f"largest-rows-{position}.md"
        show_table(f"{model}: largest rows (Tables 7-8)", ["rank", "token", "id", "norm", "paper"], rows, path)


def show_vocabulary(model: str, found: dict[str, Any], out: Path | None = None) -> None:
    """Table 3; warns of a table that looks untrained."""
    paper = paper_row("vocabulary", model)
    beside = {"rows": paper.get("visual"), "text rows": paper.get("text")}
    rows = []
    for name in ("rows", "tokens at layer 0", "N_eff", "text rows"):
        norms, theirs = found[name], beside.get(name)
        cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
        rows.append([name, *cells, spread(theirs["mean"], theirs["std"], 2) if theirs else "-"])
    show_table(f"{model}: visual vocabulary (Table 3)", ["", "mean ± std", "median", "count", "paper"], rows, out)
    if found["looks_untrained"]:
        print("warning: the table looks untrained: its rows have the norms of a random initialization")  # noqa: T201


def show_parameters(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Table 5; judging by its digits, the paper's number in brackets is the variance of |x|."""
    rows = []
    for path, numbers in found.items():
        for name in ("gain", "bias"):
            each = numbers[name]
            cells = [number(each[key]) for key in ("l2", "mean_abs")]
            cells += [f"{each[key]:.2e}" for key in ("var_abs", "std_abs", "standard_error")]
            extra = [number(numbers[key]) for key in ("gain_start", "relative_drift", "token_norm")]
            rows.append([f"{path}: {name}", *cells, *(extra if name == "gain" else ["-"] * 3)])
    for method, paper in PAPER["norm_parameters"].items():
        for name in ("gain", "bias"):
            cells = [
                number(paper.get(f"{name}_l2")),
                number(paper[f"{name}_mean_abs"]),
                f"{paper[f'{name}_spread']:.0e}",
            ]
            rows.append([f"paper, {method}: {name}", *cells, *["-"] * 5])
    heads = ["", "L2", "mean abs", "var abs", "std abs", "s.e.", "start", "relative drift", "token norm"]
    show_table("Gain and bias of the norm (Table 5)", heads, rows, out)
    for path in (path for path, numbers in found.items() if numbers["gain_collapsed"]):
        print(f"warning: {path}: the gain has collapsed: its mean magnitude is below compensation_eps")  # noqa: T201


def show_attention(model: str, found: dict[str, Any], out: Path | None = None) -> None:
    """Appendix G by layer, and `bottom_third` again with the visual tokens shuffled."""
    rows = []
    for layer, columns in found["plain"].items():
        cells = [_attention_cell(columns.get(name)) for name in ATTENTION_NUMBERS]
        shuffled = found["shuffled"][layer].get("bottom_third")
        rows.append([str(layer), *cells, _attention_cell(shuffled)])
    heads = ["layer", *(name.replace("_", " ") for name in ATTENTION_NUMBERS), "bottom third, tokens shuffled"]
    show_table(f"{model}: attention of {found['queries']} tokens to {found['images']} images", heads, rows, out)
    placed, images = found["with_grid"], found["images"]
    if placed < images:
        print(  # noqa: T201
            f"bottom third, centre, box and map are of {placed} of {images} images: the visual tokens of the others "
            "are not one grid whose rows and columns are known (tiles, a resampler)"
        )
    elif not found["maps"]:
        print("no maps: the images have grids of several sizes")  # noqa: T201


def _attention_cell(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{number(value['mean'], 3)} [{value['ci95'][0]:.3f}, {value['ci95'][1]:.3f}]"


def show_gradients(model: str, found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Section 5.1: one column per variant, with its ratio to the variant without a norm."""
    names = list(dict.fromkeys(name for columns in found.values() for name in columns))
    rows = []
    for name in names:
        cells = []
        for columns in found.values():
            cell = columns.get(name)
            text = "-" if cell is None else f"{cell['mean']:.4g}"
            if cell is not None and "over_none" in cell:
                low, high = cell["over_none_ci95"]
                text += f" (x {cell['over_none']:.3g} [{low:.3g}, {high:.3g}])"
            cells.append(text)
        rows.append([name, *cells])
    title = f"{model}: gradients of one batch (geometric mean of the ratio to no norm, 95 %)"
    show_table(title, ["", *found], rows, out)


def show_asymmetry(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Visual minus text of every model, and the paired difference from the first model."""
    rows = []
    for model, quantities in found.items():
        for name, cell in quantities.items():
            change = _signed_cell(cell["change"], cell["change_ci95"]) if "change" in cell else "-"
            rows.append([model, name, _signed_cell(cell["mean"], cell["ci95"]), change])
    heads = ["model", "quantity", "visual - text, 95 %", f"minus {next(iter(found))}, paired, 95 %"]
    show_table("Asymmetry of visual and text tokens, means over images", heads, rows, out)


def _signed_cell(mean: float, interval: list[float]) -> str:
    return f"{mean:+.4f} [{interval[0]:+.4f}, {interval[1]:+.4f}]"


def show_prediction(profile: dict[str, Any]) -> None:
    """Eq. 9 by layer against the profile."""
    found = predicted_rotation(profile)
    columns = [found[name] for name in ("predicted_ratio", "measured_ratio", "coherence")]
    rows = [[str(i), *(number(value) for value in cells)] for i, cells in enumerate(zip(*columns, strict=True))]
    title = (
        f"{profile['model']}: rotation of visual over text tokens; the norms explain {found['share']:.2f} of the log "
        f"ratio, R² about zero {found['r_squared']:.2f}"
    )
    show_table(title, ["layer", "N_t / N_v (Eq. 9)", "measured", "coherence c"], rows)
