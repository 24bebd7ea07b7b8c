"""The page of `fedjax-adapt report`: what it says, and what a browser makes of it."""

import base64
import io
import json
import re
import shlex
import shutil
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet as pq
import pytest
from browser import PROGRAM, WITHOUT, browser
from matplotlib.image import imread

from fedjax_adapt import cli
from fedjax_adapt.cli.partition import preview
from fedjax_adapt.cli.run import parse
from fedjax_adapt.experiment import Config, read_run, run, store
from fedjax_adapt.experiment.config import config_hash
from fedjax_adapt.report import html, page
from fedjax_adapt.report.page import report_page

HOSTILE = "<script>alert(1)<!-- & \"'\\"
OPEN = ("meta", "input", "line", "polyline", "image")  # which have no end of their own


class Page(HTMLParser):
    """The elements of a page, its tables by caption and its text; none is left open."""

    def __init__(self, source):
        super().__init__()
        self.source, self.open, self.tags, self.words = source, [], [], []
        self.tables, self.rows = {}, []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_decl(self, decl):
        assert decl == "doctype html"

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs))
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in OPEN:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self.caption, []).append(self.rows)
            self.rows = []

    def handle_data(self, data):
        if self.open and self.open[-1] == "caption":
            self.caption = data
        elif self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] = data
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return "\n".join(self.words)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def table(self, caption, which=0):
        """A table as a dict of rows by the name of the row and of the column."""
        head, *rows = self.tables[caption][which]
        assert all(len(row) == len(head) for row in rows)
        return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


@pytest.fixture(scope="module")
def place(whole, also, tmp_path_factory):
    """A folder of finished runs; only to be read.

    whole and also are those of conftest, gsnr has r_k and a clock but no accuracy of
    clients, HOSTILE is whole with such a name and setting, and leaks has trained on its
    test set.
    """
    folder = tmp_path_factory.mktemp("reports")
    settings = {"base": "scaffold", "num_steps": 4, "probe_batches": 1}
    run(
        Config(
            folder=str(folder / "gsnr"),
            algorithm="fedgsnr",
            algorithm_options=settings,
            model="linear",
            num_clients=6,
            participation=0.5,
            rounds=4,
            batch_size=50,
            lr=0.05,
            step_seconds=0.1,
            evaluate_clients=False,
        )
    )
    shutil.copytree(whole.folder, folder / "whole")
    shutil.copytree(also.folder, folder / "also")
    shutil.copytree(whole.folder, folder / HOSTILE)
    config = (folder / HOSTILE / store.CONFIG).read_text()
    named = f"data_dir = {json.dumps(HOSTILE)}\nseed = 5\n"
    hostile, found = re.subn(r"^seed = 0\n", lambda _: named, config, flags=re.M)
    assert found == 1
    (folder / HOSTILE / store.CONFIG).write_text(hostile)
    shutil.copytree(whole.folder, folder / "leaks")
    summary = json.loads((folder / "leaks" / store.SUMMARY).read_text())
    own = {name: summary.pop(name) for name in summary_figures(summary)}
    (folder / "leaks" / store.SUMMARY).write_text(
        json.dumps(summary | {store.TRAINED: own})
    )
    for part in (folder / "leaks" / "metrics").iterdir():
        rows = pq.read_table(part)
        names = [n.replace(store.ACCURACY, store.TRAINED) for n in rows.column_names]
        pq.write_table(rows.rename_columns(names), part)
    return folder


def summary_figures(summary):
    from fedjax_adapt.experiment.summary import FIGURES

    return [name for name in FIGURES if name in summary]


ALL = ("whole", "also", "gsnr", HOSTILE, "leaks")


@pytest.fixture(scope="module")
def source(place):
    return report_page([place / name for name in ALL])


@pytest.fixture(scope="module")
def shown(source):
    return Page(source)


def test_a_page_is_whole_and_needs_nothing_else(source, shown):
    assert not re.search(r"https?:|//|@import|url\(|<script|<link|<iframe", source)
    for _, attributes in shown.tags:
        for name in ("src", "href", "action", "data"):
            assert attributes.get(name, "data:image/png;").startswith("data:image/png;")
    ids = [a["id"] for _, a in shown.tags if "id" in a]
    assert len(ids) == len({*ids}) == 6
    assert len(shown.all("h1")) == 1 and shown.all("html") == [{"lang": "en"}]
    assert len(shown.all("caption")) == len(shown.all("table")) > 20
    for image in shown.all("svg"):
        assert image.get("aria-hidden") or (
            image["role"] == "img" and image["aria-label"]
        )
    (policy,) = [a["content"] for a in shown.all("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; ") and "script" not in policy


@pytest.mark.parametrize("name", ALL)
def test_figures_are_those_of_the_rows(name, place, shown):
    record, which = read_run(place / name), int(name == "leaks")
    named = record.accuracy
    tested, of = (
        ("test accuracy", "")
        if which == 0
        else (
            "training accuracy on the public set",
            "training accuracy, ",
        )
    )
    column = {n: record.metrics[n].to_pylist() for n in record.metrics.column_names}
    share, loss = column[named], "loss on the public set" if which else "test loss"
    best = share.index(max(share))
    first = lambda goal: next(
        (r for r, a in zip(column["round"], share, strict=True) if a >= goal),
        "not reached",
    )
    own = {row: of[name] for row, of in shown.table("figure by run", which).items()}
    percent = "{:.2f} %".format
    assert own[tested] == f"{percent(100 * share[-1])} after {len(share)} rounds"
    assert own[loss] == f"{column['loss'][-1]:.4f}"
    assert own[f"{of}best"] == f"{percent(100 * share[best])} in round {best + 1}"
    last = f"{percent(100 * np.mean(share))} ± {percent(100 * np.std(share))}"
    assert own[f"{of}last {len(share)} evaluations"] == last
    goals = ", ".join(f"{100 * g:g} %: {first(g)}" for g in (0.9, 0.95, 0.97))
    assert own[f"{of}rounds to"] == goals
    assert own["local steps"] == f"{column['local_steps'][-1]:,} of all clients"
    down, up = (column[f"bytes_{way}"][-1] / 1e6 for way in ("down", "up"))
    assert own["traffic"] == f"{down:,.4g} MB to the clients, {up:,.4g} MB from them"
    rho = 1e4 * share[-1] / ((down + up) * 1e6 / 2**20)
    assert (
        f"rho {rho:.4g} by MiB"
        in own[f"{of or 'accuracy, '}x 1e4".replace(", x", " x")]
    )
    by_class = column[f"class_{named}"][-1]
    low, high = 100 * min(by_class), 100 * max(by_class)
    assert own[f"{of}by class"] == f"{percent(low)} to {percent(high)}"
    each = shown.table(f"{tested} on each class")[name]
    assert [*each.values()] == [percent(100 * value) for value in by_class]
    rows = shown.tables[name][0]
    assert len(rows) == 1 + len(share)
    for i, (number, *cells) in enumerate(rows[1:]):
        assert int(number) == column["round"][i]
        assert cells[0] == f"{column['local_steps'][i]:,}"
        assert cells[-2:] == [percent(100 * share[i]), f"{column['loss'][i]:.4g}"]


def test_curves_are_of_the_rows_against_what_is_chosen(place, source):
    """Places on the page are those of the rows but for a shift and a scale."""
    records = {name: read_run(place / name).metrics for name in ("whole", "gsnr")}
    for axis in page.AXES:
        panel = source.split(f'<div class="figures by {axis}">')[1].split("</div>")[0]
        accuracy, loss = panel.split("</figure>")[:2]
        for name, rows in records.items():
            if not rows[axis].to_numpy().any():
                assert axis == "simulated_seconds" and name == "whole"
                continue
            for drawing, column in ((accuracy, store.ACCURACY), (loss, "loss")):
                found = [
                    np.array([pair.split(",") for pair in points.split()], float)
                    for points in re.findall(r'<polyline points="([^"]+)"', drawing)
                ]
                scale = (
                    np.log if column == "loss" and "0.2</text" in drawing else np.array
                )
                known = [(rows[axis], 1), (scale(rows[column].to_numpy()), -1)]
                fits = [
                    points
                    for points in found
                    if len(points) == len(rows)
                    and all(
                        affine(np.array(values), points[:, i], sign)
                        for i, (values, sign) in enumerate(known)
                    )
                ]
                assert fits, (axis, name, column)


def affine(values, places, sign):
    slope, shift = np.polyfit(values, places, 1)
    return np.sign(slope) == sign and np.allclose(
        slope * values + shift, places, atol=0.1
    )


def pictures(source, title):
    """The opacity of the images whose title begins so, in [0, 1]."""
    found = re.findall(rf'aria-label="{title}.*?base64,([^"]+)"', source)
    return [imread(io.BytesIO(base64.b64decode(data)))[..., 3] for data in found]


def test_maps_show_local_steps_and_labels_of_each_client(place, source, shown, whole):
    most = 0
    for name in ALL:
        most = max(most, *read_run(place / name).clients["num_steps"].to_pylist())
    record = read_run(place / "gsnr")
    steps = np.zeros((6, 4))
    for row in record.clients.to_pylist():
        steps[row["client"], row["round"] - 1] = row["num_steps"]
    (image,) = pictures(source, "gsnr: local steps")
    np.testing.assert_allclose(image, np.ceil(255 * steps / most) / 255, atol=1e-6)
    counts = np.asarray(preview(whole).label_counts)
    (image,) = pictures(source, "whole, also, ")
    shares = np.sqrt(counts / counts.sum(1, keepdims=True))
    np.testing.assert_allclose(image, np.ceil(255 * shares) / 255, atol=1e-6)
    names = ", ".join(name for name in ("whole", "also", HOSTILE, "leaks"))
    (caption,) = [c for c in shown.tables if c.startswith("whole, also, ")]
    assert caption == names
    rows = shown.tables[caption][0][1:]
    assert [[*map(int, row[2:])] for row in rows] == counts.tolist()
    assert [int(row[1]) for row in rows] == counts.sum(1).tolist()


def test_rounds_share_columns_where_there_are_many(place, monkeypatch):
    monkeypatch.setattr(page, "MOST_COLUMNS", 4)
    source = report_page([place / "whole"])
    rows = read_run(place / "whole").clients.to_pylist()
    means = np.zeros((6, 4))
    for client, column in np.ndindex(6, 4):
        own = [
            row["num_steps"]
            for row in rows
            if row["client"] == client and (row["round"] - 1) // 2 == column
        ]
        means[client, column] = np.mean(own) if own else 0
    most = max(row["num_steps"] for row in rows)
    (image,) = pictures(source, "whole: local steps")
    np.testing.assert_allclose(image, means / most, atol=1 / 255)


def test_bars_are_of_r_k(place, source, shown):
    ranked = page.contributions(place / "gsnr")
    rows = shown.table("gsnr: gradient signal-to-noise ratio")
    assert [*rows] == [str(one.client) for one in ranked] and len(rows) > 1
    assert [row["mean r_k"] for row in rows.values()] == [
        f"{x.mean:.4g}" for x in ranked
    ]
    most = max(max(one.mean, one.median) for one in ranked)
    table = source.split("signal-to-noise ratio</caption>")[1].split("</table>")[0]
    bars = [float(v) for v in re.findall(r"--share:([\d.]+)%", table)]
    shares = [100 * v / most for one in ranked for v in (one.mean, one.median)]
    np.testing.assert_allclose(bars, shares, atol=0.06)


def test_settings_that_differ_stand_side_by_side_and_others_once(place, shown):
    differ, same = shown.table("setting by run"), shown.table("setting of all runs")
    assert not {*differ} & {*same}
    configs = {name: read_run(place / name).config for name in ALL}
    for name in {*configs["gsnr"], *configs[HOSTILE]}:
        values = [page.setting_of(config, name) for config in configs.values()]
        assert (name in differ) == any(value != values[0] for value in values), name
    assert differ["lr"]["gsnr"] == "0.05" and differ["lr"]["whole"] == "0.1"
    assert differ["seed"][HOSTILE] == "5" and differ["step_seconds"]["whole"] == "none"
    assert differ["algorithm.num_steps"]["whole"] == "-"
    assert same["rounds" if "rounds" in same else "model"]["all runs"] == "linear"


def test_what_is_not_recorded_is_a_line_that_says_what_records_it(shown, place):
    others = ", ".join(["whole", "also", HOSTILE, "leaks"])
    for line in (
        f"simulated time (s): not recorded by {others}; step_seconds turns on the",
        "accuracy of clients: not recorded by gsnr; evaluate_clients=true measures it.",
        f"GSNR: not recorded by {others}; algorithm=fedgsnr measures it.",
    ):
        assert line in shown.text, line
    assert not re.search(r"(local steps|labels): not recorded", shown.text)
    bare = place / "bare"
    shutil.copytree(place / "whole", bare)
    for name in ("clients", store.PARTITION):
        shutil.rmtree(bare / name)
    text = Page(report_page([bare])).text
    shutil.rmtree(bare)
    assert "labels: not recorded; an earlier version made the run; fedjax-adapt" in text
    assert "local steps: not recorded; " in text and "GSNR: not recorded; " in text


def test_training_accuracy_stands_in_no_table_of_test_accuracy(shown):
    for caption in ("figure by run", "ranking"):
        honest, leaks = shown.tables[caption]
        assert "leaks" not in str(honest) and "whole" not in str(leaks)
    assert "leaks" not in shown.table("test accuracy on each class")
    assert [*shown.table("training accuracy on the public set on each class")] == [
        "leaks"
    ]


def test_names_and_settings_are_text(source, shown):
    assert "<script" not in source and "<!--" not in source
    assert HOSTILE in shown.table("figure by run")["best"]
    assert shown.table("setting by run")["data_dir"][HOSTILE] == HOSTILE
    assert {tag for tag, _ in shown.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "main", "section"),
        *(
            "h1",
            "h2",
            "h3",
            "p",
            "ul",
            "li",
            "div",
            "table",
            "caption",
            "thead",
            "tbody",
        ),
        *("tr", "th", "td", "details", "summary", "pre", "code", "fieldset", "legend"),
        *("label", "input", "figure", "figcaption"),
        *("svg", "line", "text", "polyline", "image"),
    }
    names = {name for _, attributes in shown.tags for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert html.text("a\udcff<") == "a?&lt;"  # a byte of a path that is no text


def test_a_command_makes_the_run_again(place, shown, monkeypatch):
    monkeypatch.chdir(place)
    lines = [
        word for word in shown.words if word.startswith("fedjax-adapt run --config ")
    ]
    assert len(lines) == len(ALL)
    folders = set()
    for line, name in zip(
        lines, ("whole", "also", HOSTILE, "gsnr", "leaks"), strict=False
    ):
        program, command, *words = shlex.split(line)
        config = parse(words).config
        assert (program, command) == ("fedjax-adapt", "run")
        folders.add(config.folder)
    assert len(folders) == len(ALL)
    line = next(line for line in lines if "gsnr" in line)
    config = parse(shlex.split(line)[2:]).config
    assert config_hash(config) == read_run(place / "gsnr").summary["config_hash"]
    assert (place / "gsnr" / store.CONFIG).read_text() in shown.words
