"""Draw docs/overhead.svg, the picture of the README, from the results of per_event and per_step.

The left part shows the ns that a recorder adds to an allocation and its free, by the number of
Python frames, without forward stacks. The right part shows what a recorder adds to a training
step, in per cent of its time, with pytracer's default options. Bars are medians over processes;
whiskers reach from the minimum to the maximum. The line below names the machine and the versions.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from harness import DEFAULT, RESULTS, where
from matplotlib.axes import Axes

FRAMES = (5, 20, 40, 100)
SITUATIONS = {"quiet": "quiet", "busy GIL": "busy GIL: another\nthread computes"}
SERIES = {
    "native python": ("torch's recorder, Python stacks", "#c9862b"),
    "all": ("pytracer", "#2b6cb0"),
    "empty tracker": ("a tracker that does nothing", "#a0aec0"),
}


def bars(
    axes: Axes, groups: list[str], found: dict[str, list[dict[str, float]]], form: str
) -> None:
    """Draw a group of bars for each of `groups`, with a bar for each configuration of `found`."""
    width = 0.8 / len(found)
    for index, (configuration, figures) in enumerate(found.items()):
        label, color = SERIES[configuration]
        places = [group + (index - (len(found) - 1) / 2) * width for group in range(len(groups))]
        medians = [figure["median"] for figure in figures]
        axes.bar(places, medians, 0.94 * width, label=label, color=color)
        reach = [
            [figure["median"] - figure["min"] for figure in figures],
            [figure["max"] - figure["median"] for figure in figures],
        ]
        axes.errorbar(places, medians, reach, fmt="none", ecolor="#4a5568", elinewidth=0.8)
        for place, figure in zip(places, figures, strict=True):
            above = max(figure["max"], 0)
            axes.annotate(
                format(figure["median"], form),
                (place, above),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks([])
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "npu"), default="cuda")
    parser.add_argument("--results", type=Path, default=RESULTS)
    output = Path(__file__).parents[1] / "docs/overhead.svg"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()
    per_event, per_step = (
        json.loads((options.results / f"{name}_{options.device}.json").read_text())
        for name in ("per_event", "per_step")
    )
    pairs = {
        (figure["configuration"], figure["frames"]): figure["added_ns"]
        for figure in per_event["figures"]
        if figure["through"] == "raw"
    }
    steps = {
        (name, figures["situation"]): added["percent"]
        for figures in per_step["figures"]["situations"]
        if figures["clock"] == "wall"
        for name, added in figures["added"].items()
    }
    step = per_step["figures"]["step"]

    # Text is not converted to paths, and the same figures give the same file.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "overhead", "font.size": 9})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 3.6), width_ratios=(5, 3), layout="constrained", facecolor="white"
    )
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)
    bars(
        left,
        [f"{frames} frames" for frames in FRAMES],
        {name: [pairs[name, frames] for frames in FRAMES] for name in SERIES},
        ".0f",
    )
    left.set_title("ns added to an allocation and its free", loc="left", fontsize=10)
    left.legend(frameon=False, loc="upper left")
    bars(
        right,
        list(SITUATIONS.values()),
        {
            name: [steps[DEFAULT if name == "all" else name, each] for each in SITUATIONS]
            for name in SERIES
            if (name, "quiet") in steps
        },
        ".1f",
    )
    right.set_title(
        f"% added to a GPT's training step, {step['pairs']} pairs", loc="left", fontsize=10
    )
    places = dict.fromkeys(map(where, (per_event, per_step)))
    figure.supxlabel("\n".join(places), fontsize=8, color="#4a5568")
    figure.savefig(options.output, metadata={"Date": None})
    print(options.output)


if __name__ == "__main__":
    main()
