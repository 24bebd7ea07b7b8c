"""The page of `fedjax-adapt report`: what it says, and what a browser makes of it."""

import base64
import io
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import PROGRAM, WITHOUT, browser
from helpers import fedjax_adapt, relist, replace_in
from matplotlib.image import imread
from tiny_runs import TINY

from fedjax_adapt.cli import run as cli_run
from fedjax_adapt.cli.partition import preview
from fedjax_adapt.experiment import Config, read_run, run, store, sweep
from fedjax_adapt.experiment.config import config_hash, from_settings
from fedjax_adapt.experiment.summary import FIGURES
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
            partition="iid",
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
    own = {name: summary.pop(name) for name in FIGURES}
    (folder / "leaks" / store.SUMMARY).write_text(
        json.dumps(summary | {store.TRAINED: own})
    )
    for part in (folder / "leaks" / "metrics").iterdir():
        rows = pq.read_table(part)
        names = [n.replace(store.ACCURACY, store.TRAINED) for n in rows.column_names]
        pq.write_table(rows.rename_columns(names), part)
    for name in (HOSTILE, "leaks"):
        relist(folder / name)
    return folder


ALL = ("whole", "also", "gsnr", HOSTILE, "leaks")


@pytest.fixture(scope="module")
def source(place):
    return report_page([place / name for name in ALL])


@pytest.fixture(scope="module")
def shown(source):
    return Page(source)


@pytest.mark.slow
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
    tested, of = "test accuracy", ""
    if name == "leaks":
        tested, of = "training accuracy on the public set", "training accuracy, "
    column = {n: record.metrics[n].to_pylist() for n in record.metrics.column_names}
    share, loss = column[named], "loss on the public set" if which else "test loss"
    best = share.index(max(share))
    pairs = [*zip(column["round"], share, strict=True)]
    reached = {g: [r for r, a in pairs if a >= g] for g in (0.9, 0.95, 0.97)}
    own = {row: of[name] for row, of in shown.table("figure by run", which).items()}
    percent = "{:.2f} %".format
    on = f"on {record.summary['data']['test']} examples"
    shown_share = percent(100 * share[-1])
    assert own[tested] == f"{shown_share} after {len(share)} rounds, {on}"
    assert own[loss] == f"{column['loss'][-1]:.4f}"
    assert own[f"{of}best"] == f"{percent(100 * share[best])} in round {best + 1}"
    last = f"{percent(100 * np.mean(share))} ± {percent(100 * np.std(share))}"
    assert own[f"{of}last {len(share)} evaluations"] == last
    first = lambda rounds: rounds[0] if rounds else "not reached"
    goals = ", ".join(f"{100 * g:g} %: {first(at)}" for g, at in reached.items())
    assert own[f"{of}rounds to"] == goals
    assert own["local steps"] == f"{column['local_steps'][-1]:,} of all clients"
    down, up = (column[f"bytes_{way}"][-1] / 2**20 for way in ("down", "up"))
    assert own["traffic"] == f"{down:,.4g} MiB to the clients, {up:,.4g} MiB from them"
    rho = 1e4 * share[-1] / (down + up)
    score = f"10,000 x {'training ' if which else ''}accuracy"
    assert own[score].endswith(f"{rho:.4g} per MiB of traffic (rho)")
    by_class = column[f"class_{named}"][-1]
    low, high = 100 * min(by_class), 100 * max(by_class)
    assert own[f"{of}by class"] == f"{percent(low)} to {percent(high)}"
    between = record.summary["client_accuracy"]  # of which the rows say nothing
    if name == "gsnr":
        assert (own["by client"], between) == ("-", {})
    else:
        mean, std, worst = (100 * between[n] for n in ("mean", "std", "worst_tenth"))
        assert own["by client"] == (
            f"{percent(mean)} ± {percent(std)} on its own training examples, "
            f"{percent(worst)} for the worst tenth"
        )
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
    columns = (store.ACCURACY, "loss")  # of less than a decade
    for axis in page.AXES:
        panel = source.split(f'<div class="figures by {axis}">')[1].split("</div>")[0]
        for name in ("whole", "gsnr"):
            rows = read_run(place / name).metrics
            x = rows[axis].to_numpy()
            if not x.any():
                assert (axis, name) == ("simulated_seconds", "whole")
                continue
            for column, drawing in zip(columns, panel.split("</figure>"), strict=False):
                y = rows[column].to_numpy()
                lines = re.findall(r'<polyline points="([^"]+)"', drawing)
                pairs = [[at.split(",") for at in line.split()] for line in lines]
                found = [np.array(own, float).T for own in pairs if len(own) == len(x)]
                fits = [affine(x, own[0], 1) and affine(y, own[1], -1) for own in found]
                assert any(fits), (axis, name, column)


def test_a_value_that_is_not_finite_is_left_out_and_decades_are_logarithmic():
    x, y = np.arange(4.0), np.array([1.0, np.nan, 0.1, 0.01])
    drawn = html.curves("t", "x", "y", [(0, x, y)], decades=True)
    (points,) = re.findall(r'points="([^"]+)"', drawn)
    places = np.array([at.split(",") for at in points.split()], float)
    assert affine(x[[0, 2, 3]], places[:, 0], 1)
    assert affine(np.log(y[[0, 2, 3]]), places[:, 1], -1)
    assert places[1, 1] - places[0, 1] == places[2, 1] - places[1, 1] > 50
    whole = (0, x, np.array([0.0, 1.0, 100.0, 1.0]))
    drawn = html.curves("t", "x", "y", [whole], decades=True)
    assert ">60</text>" in drawn  # of an axis from 0
    assert "nothing to draw" in html.curves(
        "<t", "x", "y", [(0, x, np.full(4, np.nan))]
    )


def test_accuracy_is_never_on_a_logarithmic_axis(place, monkeypatch):
    drawn, curves = [], html.curves

    def two_decades(title, x, y, _, **more):
        line = [(0, np.arange(3.0), np.array([1.0, 50.0, 99.0]))]
        (points,) = re.findall(r'points="([^"]+)"', curves(title, x, y, line, **more))
        heights = [float(at.split(",")[1]) for at in points.split()]
        drawn.append((y, affine(line[0][2], np.array(heights), -1)))
        return ""

    monkeypatch.setattr(html, "curves", two_decades)
    report_page([place / "whole"])
    assert set(drawn) == {
        ("test accuracy (%)", True),
        ("accuracy (%)", True),
        ("test loss", False),
    }


def test_a_key_has_the_settings_that_all_seeds_of_a_line_have(place, tmp_path):
    changes = [("a", 0, 1, 0.1), ("b", 1, 3, 0.1), ("c", 0, 3, 0.2)]
    for name, seed, every, lr in changes:
        shutil.copytree(place / "whole", tmp_path / name)
        replace_in(
            tmp_path / name,
            ("config.toml", "\nseed = 0\n", f"\nseed = {seed}\n"),
            ("config.toml", "evaluate_every = 1\n", f"evaluate_every = {every}\n"),
            ("config.toml", "lr = 0.1\n", f"lr = {lr}\n"),
            ("summary.json", '"seed": 0', f'"seed": {seed}'),
        )
        relist(tmp_path / name)
    shown = Page(report_page([tmp_path / name for name in "abc"]))
    keys = [x for x in shown.words if re.match("[12]: scaffold", x)]
    assert keys[0] == "1: scaffold, lr=0.1"
    assert set(keys[1].split(", ")) == {"2: scaffold", "lr=0.2", "evaluate_every=3"}


def test_a_curve_of_one_value_is_a_point():
    one, two = (0, np.array([1]), np.array([0.5])), (1, np.arange(2), np.arange(2.0))
    drawn = html.curves("t", "x", "y", [one, two])
    (point,) = re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', drawn)
    lines = re.findall(r'<polyline points="([^"]+)"', drawn)
    assert ",".join(point) == lines[0] and " " in lines[1]


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
    (caption,) = [c for c in shown.tables if c.startswith("whole, also, ")]
    assert caption == f"whole, also, {HOSTILE}, leaks"
    rows = shown.tables[caption][0][1:]
    assert [[*map(int, row[2:])] for row in rows] == counts.tolist()
    assert [int(row[1]) for row in rows] == counts.sum(1).tolist()
    even = pictures(source, "gsnr: root of")[0]
    assert even.max() < image.max() and even.shape == image.shape


@pytest.mark.slow
def test_a_drawing_names_five_runs_and_counts_the_others(whole, tmp_path):
    for i in range(7):
        shutil.copytree(whole.folder, tmp_path / f"run{i}")
    page = report_page([tmp_path])
    (caption,) = re.findall("<figcaption>([^<]*): root of each label", page)
    assert caption == "run0, run1, run2, run3, run4 and 2 more"
    assert ", ".join(f"run{i}" for i in range(7)) in Page(page).tables  # with numbers
    five = report_page([tmp_path / f"run{i}" for i in range(5)])
    assert "<figcaption>run0, run1, run2, run3, run4: root" in five


def test_the_accuracy_of_each_client_is_drawn_from_the_least(
    place, source, shown, tmp_path
):
    rows = store.read_table(place / "whole", store.PARTITION)
    each = rows["client_accuracy"].to_pylist()
    order = sorted(range(len(each)), key=lambda client: each[client])
    _, *cells = shown.tables["whole: accuracy by client"][0]
    assert cells == [[str(k), f"{100 * each[k]:.2f} %"] for k in order]
    mean = read_run(place / "whole").summary["client_accuracy"]["mean"]
    assert np.mean(each) == pytest.approx(mean)
    drawing = source.split("accuracy by client, the least accurate first")[1]
    (points, *others) = re.findall(
        '<polyline points="(.*?)"', drawing.split("</svg>")[0]
    )
    across, up = np.array([p.split(",") for p in points.split()], float).T
    assert len(others) == 2 and len(across) == 6 and (np.diff(across) > 0).all()
    affine(np.array(each)[order], up, -1)
    assert "gsnr: accuracy by client" not in shown.tables
    old = tmp_path / "old"  # as an earlier version left it
    shutil.copytree(place / "whole", old)
    (part,) = (old / store.PARTITION).iterdir()
    pq.write_table(rows.select(["client", "label_counts"]), part)
    relist(old)
    assert "each client: not recorded" not in shown.text
    assert (
        "each client: not recorded; of runs and trials" in Page(report_page([old])).text
    )
    # nobody asked a client without examples
    held = rows["client_accuracy"].to_pylist()
    at = rows.column_names.index("client_accuracy")
    lacks = rows.set_column(at, "client_accuracy", pa.array([None, *held[1:]]))
    pq.write_table(lacks, part)
    relist(old)
    _, *cells = Page(report_page([old])).tables["old: accuracy by client"][0]
    assert sorted(row[0] for row in cells) == ["1", "2", "3", "4", "5"]


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
    assert same["model"]["all runs"] == "linear"


def test_what_is_not_recorded_is_a_line_that_says_what_records_it(shown, place):
    others = ", ".join(["whole", "also", HOSTILE, "leaks"])
    for line in (
        f"simulated time (s): not recorded by {others}; step_seconds turns on the",
        "by client: not recorded by gsnr; evaluate_clients=true measures it.",
        f"GSNR: not recorded by {others}; algorithm=fedgsnr measures it.",
    ):
        assert line in shown.text, line
    assert not re.search(r"(local steps|labels): not recorded", shown.text)
    bare = place / "bare"
    shutil.copytree(place / "whole", bare)
    for name in ("clients", store.PARTITION):
        shutil.rmtree(bare / name)
    relist(bare)
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


@pytest.mark.slow
def test_a_command_makes_the_run_again(place, shown, monkeypatch):
    monkeypatch.chdir(place)
    begin = "fedjax-adapt run --config "
    lines = [word for word in shown.words if word.startswith(begin)]
    configs = {Path(c.folder).name: c for c in map(config_of, lines)}
    assert {*configs} == {f"{name}-again" for name in ALL}
    for name in ALL:
        record, config = read_run(place / name), configs[f"{name}-again"]
        assert config.seed == record.config["seed"]
        if name not in (HOSTILE, "leaks"):  # whose files were changed
            assert config_hash(config) == record.summary["config_hash"]
        assert (place / name / store.CONFIG).read_text() in shown.words


def config_of(line):
    _, _, *words = shlex.split(line)
    return from_settings(cli_run.parse(words).settings)


@pytest.fixture
def there(place, elsewhere):
    """The folders of `place` in the working folder."""
    for name in ALL:
        (elsewhere / name).symlink_to(place / name)
    return elsewhere


def test_the_command_writes_the_page_once(there, capsys, place):
    code, out, err = fedjax_adapt(capsys, "report whole gsnr --out new.html")
    assert (code, out, err) == (0, "page  new.html\n", "")
    written = (there / "new.html").read_text()
    assert written == report_page(["whole", "gsnr"])
    code, out, err = fedjax_adapt(capsys, "report whole --out new.html")
    assert (code, out) == (2, "")
    assert err == (
        "fedjax-adapt: new.html is there already; write --overwrite to replace it, or "
        "another --out FILE.\n"
    )
    assert (there / "new.html").read_text() == written
    assert fedjax_adapt(capsys, "report whole --out new.html --overwrite")[0] == 0
    assert "<h1>Run whole</h1>" in (there / "new.html").read_text()
    assert fedjax_adapt(capsys, "report whole")[0] == 0
    assert (there / "report.html").exists()


@pytest.mark.parametrize(
    "line, says",
    [
        (
            "report",
            "report got 0 folders before its flags; give those of finished runs",
        ),
        (
            "report foreign",
            "foreign holds no run: it has no config.toml; write the folder",
        ),
        ("report begun", "begun holds a run that is not finished; resume it first, or"),
        (
            "report sweep",
            "sweep holds a sweep with no finished trial; resume it first.",
        ),
        ("report whole whole", "whole is given more than once; give each run once."),
        ("report empty", "empty has no evaluation yet, so there is no curve to draw."),
        ("report whole --out a.png", "--out a.png must end in .html."),
        ("report whole --out no/a.html", "--out no/a.html: there is no folder no."),
        (
            "report whole --out=",
            "--out '' is empty; write a value, or leave --out out.",
        ),
        (
            "report whole --lr 1",
            "--lr is a setting of runs, not of report; leave it out.",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(there, capsys, line, says):
    (there / "foreign").mkdir()
    (there / "sweep" / store.GROUPS).mkdir(parents=True)
    (there / "sweep" / store.SWEEP).write_text("")
    shutil.copytree(there / "whole", there / "begun")
    (there / "begun" / store.SUMMARY).unlink()
    relist(there / "begun")
    shutil.copytree(there / "whole", there / "empty")
    shutil.rmtree(there / "empty" / "metrics")
    relist(there / "empty")
    before = sorted(there.iterdir())
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"fedjax-adapt: {says}")
    assert sorted(there.iterdir()) == before


def test_seconds_of_training_are_shown_of_runs_and_not_of_trials(
    place, shown, tmp_path
):
    trial = tmp_path / "sweep" / store.TRIALS / "0000"
    shutil.copytree(place / "whole", trial)
    (tmp_path / "sweep" / store.GROUPS).mkdir()
    (tmp_path / "sweep" / store.SWEEP).touch()
    alone = Page(report_page([trial]))
    said = "measured time of training (s): not recorded; trials of a sweep run side by side"
    assert said in alone.text
    assert "measured time of training (s)" not in alone.tables["0000"][0][0]
    assert "time" not in alone.table("figure by run")
    assert "measured time of training (s)" in shown.tables["whole"][0][0]
    assert "time" in shown.table("figure by run")


@pytest.mark.slow
def test_a_sweep_stands_for_its_trials(elsewhere):
    given = {**TINY, "rounds": 2}
    del given["checkpoint_every"]
    sweep({"folder": "sw", "run": given, "grid": {"seed": [0, 1]}})
    shown = Page(report_page(["sw"]))
    (line,) = shown.tables["ranking"][0][1:]
    assert line[3] == "2"
    differ = shown.table("setting by run")
    assert differ == {n: {"0000": "0", "0001": "1"} for n in ("seed", "partition_seed")}
    for seed, name in enumerate(["0000", "0001"]):  # each has a partition of its own
        config = Config(**given, seed=seed)
        (_, *rows) = shown.tables[name][-1]
        counts = [[*map(int, row[2:])] for row in rows]
        assert counts == np.asarray(preview(config).label_counts).tolist()


needs_browser = pytest.mark.skipif(PROGRAM is None, reason=WITHOUT)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as begun:
        yield begun


@pytest.fixture(scope="module")
def written(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "report.html"
    path.write_text(source)
    return path


SEEN = """[...document.querySelectorAll('.by')].filter(e => e.checkVisibility())
    .map(e => e.className.split(' ').pop())"""


@needs_browser
def test_the_keyboard_switches_the_axis_of_all_curves(chromium, written):
    chromium.show(written)
    names, both = [*page.AXES], 2  # tables, each with its curves
    assert chromium.value(SEEN) == [names[0]] * both
    for _ in range(9):
        chromium.press("Tab", 9)
        if chromium.value("document.activeElement.type") == "radio":
            break
    assert chromium.value("document.activeElement.id") == names[0]
    for name in [*names[1:], names[0]]:
        chromium.press("ArrowRight", 39)
        assert chromium.value("document.activeElement.id") == name
        assert chromium.value(SEEN) == [name] * both
    chromium.value(f"document.getElementById('{names[2]}').closest('label').click()")
    assert chromium.value(SEEN) == [names[2]] * both


@needs_browser
def test_what_is_shown_has_a_name(chromium, written):
    chromium.show(written)
    nodes = chromium.ask("Accessibility.getFullAXTree")["nodes"]
    of = lambda role: [
        node["name"]["value"].strip()
        for node in nodes
        if not node["ignored"] and node["role"]["value"] == role
    ]
    assert of("radio") == [*page.AXES.values()]
    assert "Curves against" in of("group")
    images, tables = of("image"), of("table")
    assert "test accuracy, communication round" in images and all(images)
    assert "figure by run" in tables and all(tables)


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_a_page_fits_the_window_and_is_light_or_dark(chromium, written, width, scheme):
    chromium.show(written, width, scheme)
    chromium.value("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert chromium.value("innerWidth") == width
    assert chromium.value("document.documentElement.scrollWidth") <= width
    beyond = """[...document.querySelectorAll('main *')]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .filter(e => !e.closest('.wide, pre')).map(e => e.outerHTML)"""
    assert chromium.value(beyond) == []
    pixels = imread(io.BytesIO(chromium.picture()))[..., :3]
    assert pixels.shape[:2] == (800, width)
    bright = np.median(pixels)
    assert bright > 0.9 if scheme == "light" else bright < 0.2
    assert np.ptp(pixels) > 0.7  # of the text on it
