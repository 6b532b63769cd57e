"""Files of votes: three forms of one table give the same counts, and what is no vote is refused."""

import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beliefmatch.data.votes import VoteColumns, Votes, _natural, cleanlab_table, read_votes
from refusals import refusal

ROWS = [
    ("a", "ann", "dog"),
    ("a", "bob", "cat"),
    ("b", "ann", "dog"),
    ("c", "bob", "fox"),
    ("a", "cyd", "dog"),
    ("c", "cyd", "fox"),
]
COUNTS = [[1, 2, 0], [0, 1, 0], [0, 0, 2]]  # cat, dog, fox for a, b, c


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def long_csv(rows=ROWS, heading="item,annotator,label"):
    return "\n".join([heading, *(",".join(row) for row in rows)])


@pytest.fixture
def forms(tmp_path):
    """The same votes in every form."""
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    columns = {
        name: list(values)
        for name, values in zip(("item", "worker", "label"), zip(*ROWS, strict=True), strict=True)
    }
    pq.write_table(pa.table(columns), tmp_path / "long.parquet")
    np.savez(
        tmp_path / "c.npz", counts=np.array(COUNTS), class_names=["cat", "dog", "fox"], items=list("abc")
    )
    wide = "item,ann,bob,cyd\na,dog,cat,dog\nb,dog,,\nc,,fox,fox"
    counts = "item,count_cat,count_dog,count_fox\na,1,2,0\nb,0,1,0\nc,0,0,2"
    return {
        "long": read_votes(written(tmp_path / "long.csv", long_csv())),
        "parquet": read_votes(tmp_path / "long.parquet"),
        "annotators": read_votes(written(tmp_path / "wide.csv", wide), form="annotators"),
        "counts": read_votes(written(tmp_path / "counts.csv", counts)),
        "npz": read_votes(tmp_path / "c.npz"),
    }


def test_every_form_gives_the_same_votes(forms):
    for votes in forms.values():
        assert votes.items == ("a", "b", "c")
        assert votes.class_names == ("cat", "dog", "fox")
        assert votes.counts.tolist() == COUNTS and votes.total == 6
    assert forms["long"].annotators == forms["annotators"].annotators == ("ann", "bob", "cyd")
    for name in ("long", "annotators"):
        votes = forms[name]
        again = torch.zeros_like(votes.counts)
        for item, _, label in votes.rows.tolist():
            again[item, label] += 1
        assert torch.equal(again, votes.counts)
    assert forms["counts"].rows is forms["npz"].rows is None
    assert forms["parquet"].recognised == {"item": "item", "annotator": "worker", "label": "label"}


def test_the_table_for_cleanlab_reads_back_as_the_same_votes(forms, tmp_path):
    heading, rows = cleanlab_table(forms["long"])
    text = "\n".join(",".join(row) for row in [heading, *rows])
    again = read_votes(written(tmp_path / "m.csv", text), form="annotators", class_names=["0", "1", "2"])
    assert again.counts.tolist() == COUNTS and again.annotators == forms["long"].annotators
    assert "annotators" in refusal(cleanlab_table, forms["counts"])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("index", [None, ["x", "y", "z"]])
def test_a_frame_of_annotators_as_pandas_writes_it_has_no_annotator_of_its_index(ending, index, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    nan = float("nan")
    frame = pd.DataFrame({"ann": [1, 0, nan], "bob": [nan, 0, 10], "cyd": [1, 1, 0]}, index=index)
    path = tmp_path / f"votes.{ending}"
    getattr(frame, f"to_{ending}")(path)
    votes = read_votes(path, form="annotators")
    assert votes.class_names == ("0", "1", "10") and votes.annotators == ("ann", "bob", "cyd")
    assert votes.items == tuple(index or "012")
    assert votes.counts.tolist() == [[0, 2, 0], [2, 1, 0], [1, 0, 1]]
    assert read_votes(path, form="annotators", class_names=["10", "1", "0"]).counts[2].tolist() == [1, 0, 1]


def test_an_index_that_pandas_has_written_is_no_class_and_no_annotator_beside_items(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"cat": [3, 0, 1], "dog": [0, 4, 1]})
    frame.to_csv(tmp_path / "counts.csv")
    votes = read_votes(tmp_path / "counts.csv", form="counts")
    assert votes.class_names == ("cat", "dog") and votes.items == ("0", "1", "2") and votes.total == 9
    pd.read_csv(tmp_path / "counts.csv").to_csv(tmp_path / "again.csv")
    assert read_votes(tmp_path / "again.csv", form="counts").counts.tolist() == votes.counts.tolist()
    named = pd.DataFrame({"item": ["a", "b"], "ann": ["cat", "dog"], "bob": ["cat", None]})
    named.to_csv(tmp_path / "named.csv")
    votes = read_votes(tmp_path / "named.csv", form="annotators")
    assert votes.items == ("a", "b") and votes.annotators == ("ann", "bob") and votes.total == 3


@pytest.mark.parametrize("empty", ["NA", "nan", "NaN", "<NA>", "N/A", "null", "#N/A"])
def test_what_programs_write_for_no_vote_is_no_class_in_any_form_unless_it_is_named(empty, tmp_path):
    path = written(tmp_path / "na.csv", f"item,ann,bob\na,cat,{empty}\nb,{empty},dog\nc,,cat")
    votes = read_votes(path, form="annotators")
    assert votes.class_names == ("cat", "dog") and votes.total == 3
    named = ["cat", "dog", empty]
    assert read_votes(path, form="annotators", class_names=named).total == 5
    rows = [("a", "ann", "cat"), ("a", "bob", empty), ("b", "ann", empty), ("b", "bob", "dog")]
    long = written(tmp_path / "long.csv", long_csv([*rows, ("c", "bob", "cat")]))
    message = refusal(read_votes, long)
    assert "`label`" in message and f"{empty!r} in row 2;" in message and "`class_names`" in message
    counts = read_votes(path, form="annotators", class_names=named).counts
    assert torch.equal(read_votes(long, class_names=named).counts, counts)


@given(st.permutations(["9", "2", "1e1", "10", "10.0", "nan", "-NaN", "inf", "-inf", "1_0", "cat", "1e999"]))
def test_labels_have_one_order_whatever_comes_first(labels):
    expected = ["2", "9", "10", "10.0", "1e1", "-NaN", "-inf", "1_0", "1e999", "cat", "inf", "nan"]
    assert sorted(labels, key=_natural) == expected


def test_labels_keep_their_fractions_where_one_is_no_whole_number(tmp_path):
    path = written(tmp_path / "ratings.csv", "item,ann,bob\na,1.0,2.5\nb,2.0,1.0")
    assert read_votes(path, form="annotators").class_names == ("1.0", "2.0", "2.5")
    path = written(tmp_path / "whole.csv", long_csv([("a", "p", "1.0"), ("a", "q", "1"), ("b", "p", "0")]))
    assert read_votes(path).counts.tolist() == [[0, 2], [1, 0]]


def test_the_table_for_cleanlab_is_made_a_row_at_a_time():
    items, people = 4000, 500
    rows = torch.stack([torch.arange(items), torch.arange(items) % people, torch.arange(items) % 2], 1)
    votes = Votes(
        source="v.csv",
        form="long",
        items=tuple(f"i{row}" for row in range(items)),
        class_names=("a", "b"),
        counts=torch.nn.functional.one_hot(rows[:, 2]).double(),
        annotators=tuple(f"p{one}" for one in range(people)),
        rows=rows.flip(0),
    )
    tracemalloc.start()
    heading, table = cleanlab_table(votes)
    filled = [[row[0], *((at, cell) for at, cell in enumerate(row[1:]) if cell)] for row in table]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(heading) == 1 + people and len(table) == items
    assert filled == [[f"i{row}", (row % people, f"{row % 2}")] for row in range(items)]
    assert peak < 5e6  # the cells alone take 16 MB


def test_repeated_votes_have_no_room_in_the_table_for_cleanlab(tmp_path):
    path = written(tmp_path / "twice.csv", long_csv([*ROWS, ("b", "ann", "dog")]))
    message = refusal(cleanlab_table, read_votes(path, repeats=True))
    assert "`multiannotator`" in message and "'ann'" in message and "'b'" in message


def test_an_annotator_called_item_has_no_place_in_the_table_for_cleanlab(tmp_path):
    path = written(
        tmp_path / "item.csv", long_csv([(i, who.replace("bob", "Item"), k) for i, who, k in ROWS])
    )
    message = refusal(cleanlab_table, read_votes(path))
    assert "`multiannotator`" in message and "'Item'" in message


@pytest.mark.parametrize(("prefix", "form"), [("count_", "auto"), ("", "counts")])
def test_class_names_leave_out_columns_without_votes_alone(prefix, form, tmp_path):
    text = f"item,note,{prefix}a,{prefix}b,{prefix}c\nx,good,1,0,{{}}\ny,bad,2,1,0"
    names = ["b", "a"]
    votes = read_votes(written(tmp_path / "c.csv", text.format(0)), form=form, class_names=names)
    assert votes.counts.tolist() == [[0, 1], [1, 2]]
    message = refusal(read_votes, written(tmp_path / "c.csv", text.format(3)), form=form, class_names=names)
    assert "`class_names`" in message and f"'{prefix}c'" in message


@pytest.mark.parametrize("heading", ["item,count_cat,count_dog,count_total", "item,total,cat,dog"])
def test_a_column_that_is_the_sum_of_the_others_is_no_class(heading, tmp_path):
    rows = [("a", 3, 2), ("b", 0, 5), ("c", 4, 1)]
    ordered = [(a, 5, x, y) if ",total," in heading else (a, x, y, 5) for a, x, y in rows]
    text = "\n".join([heading, *(",".join(map(str, row)) for row in ordered)])
    path = written(tmp_path / "total.csv", text)
    message = refusal(read_votes, path, form="counts")
    assert "total'" in message and "`class_names`" in message
    votes = read_votes(path, form="counts", class_names=["cat", "dog"])
    assert votes.counts.tolist() == [[3, 2], [0, 5], [4, 1]]
    assert votes.recognised is not None and "total" in votes.recognised["not read"]
    assert read_votes(path, form="counts", class_names=["cat", "dog", "total"]).total == 30


def test_a_sum_in_one_row_alone_is_a_class(tmp_path):
    path = written(tmp_path / "c.csv", "item,count_a,count_b,count_c\nx,2,1,1\ny,0,0,0\nz,1,1,1")
    assert read_votes(path).class_names == ("a", "b", "c")
    path = written(tmp_path / "c.csv", "item,count_a,count_b,count_c\nx,2,1,1\ny,0,0,0")
    assert read_votes(path).class_names == ("a", "b", "c")


@pytest.mark.parametrize("name", ["count", "N", "votes", "n_votes", "num_votes", "vote_count"])
def test_a_long_table_may_say_how_many_votes_each_row_stands_for(name, tmp_path):
    path = written(tmp_path / "sums.csv", f"item,label,{name},note\na,cat,4,x\na,dog,1,y\nb,dog,2.0,z")
    votes = read_votes(path)
    assert votes.counts.tolist() == [[4, 1], [0, 2]] and votes.rows is None
    assert votes.recognised == {"item": "item", "label": "label", "counts": name, "not read": "note"}


@pytest.mark.parametrize(
    "text",
    [
        "item,label,count\na,cat,3\na,cat,3\na,dog,3",  # the number of votes of the item beside each vote
        "item,annotator,label,weight\na,p,cat,2\na,q,dog,1",
        "item,label,count,weight\na,cat,2,3\na,dog,1,1",
        "item,label,count\na,cat,2\na,dog,",
        "item,label,weight\na,cat,0.5\na,dog,1.5",
        "item,label,count\na,cat,0\na,dog,0",
    ],
)
def test_numbers_of_votes_in_a_long_table_are_never_ignored(text, tmp_path):
    message = refusal(read_votes, written(tmp_path / "sums.csv", text))
    assert "`path`" in message or ("`counts`" in message and "row" in message)


def test_texts_and_ones_beside_single_votes_change_nothing(tmp_path):
    text = "item,annotator,label,n,votes\na,p,cat,1,cat dog\na,q,dog,1,\nb,p,dog,1,dog"
    votes = read_votes(written(tmp_path / "ones.csv", text))
    assert votes.total == 3
    assert votes.recognised is not None and votes.recognised["not read"] == "n, votes"


def test_numbers_are_labels_in_the_order_of_their_values(tmp_path):
    rows = [("x", "p", "10"), ("x", "q", "9"), ("y", "p", "2")]
    assert read_votes(written(tmp_path / "n.csv", long_csv(rows))).class_names == ("2", "9", "10")


def test_columns_can_be_named_and_annotators_left_out(tmp_path):
    path = written(tmp_path / "own.csv", "what;says\na;x\na;y\nb;x")
    votes = read_votes(path, columns=VoteColumns(item="what", label="says"), form="long")
    assert votes.counts.tolist() == [[1, 1], [1, 0]] and votes.rows is None


def test_an_annotator_votes_once_for_an_item_unless_repeats_are_allowed(tmp_path):
    path = written(tmp_path / "twice.csv", long_csv([*ROWS, ("b", "ann", "dog")]))
    message = refusal(read_votes, path)
    assert "`annotator`" in message and "'ann' 2 times for 'b'" in message
    assert read_votes(path, repeats=True).counts[1].tolist() == [0, 2, 0]


@pytest.mark.parametrize(
    ("text", "options", "argument"),
    [
        (long_csv([]), {}, "path"),
        (long_csv([("a", "p", "x"), ("b", "", "y")]), {}, "annotator"),
        (long_csv([("a", "p", ""), ("b", "q", "y")]), {}, "label"),
        (long_csv([("a", "p", ""), ("b", "q", "y")]), {"class_names": ["y", "NA"]}, "label"),
        (long_csv([("a", "p", "x"), ("b", "q", "x")]), {}, "label"),
        (long_csv(), {"class_names": ["cat", "dog"]}, "label"),
        (long_csv(), {"columns": VoteColumns(item="thing")}, "item"),
        ("u,v,w\n1,2,3", {}, "path"),
        ("item,count_a,count_b\nx,1,0.5", {}, "counts"),
        ("item,count_a,count_b\nx,1,-1", {}, "counts"),
        ("item,count_a,count_b\nx,0,0", {}, "path"),
        ("item,count_a,count_b\nx,1,0\nx,0,1", {}, "item"),
        ("item,count_a,count_b\nx,1,0\n,0,1", {}, "item"),
        ("item,p,q\nx,a,b\n ,b,b", {"form": "annotators"}, "item"),
        ("item,count_a,count.a,count_b\nx,1,0,2", {}, "path"),
        (long_csv(), {"class_names": ["cat", "dog", "fox", "dog"]}, "class_names"),
        ("item,count_a,count_b\nx,1,0", {"class_names": ["a", "c"]}, "path"),
        ("item,p,q\nx,,\ny,,", {"form": "annotators"}, "path"),
        ("item\nx", {"form": "annotators"}, "path"),
    ],
)
def test_what_is_no_table_of_votes_is_refused_by_name(text, options, argument, tmp_path):
    assert f"`{argument}`" in refusal(read_votes, written(tmp_path / "bad.csv", text), **options)


@pytest.mark.parametrize("bad", ["-1", "0.5", "nan", "inf", "1e300"])
def test_a_number_that_counts_nothing_is_named_by_row_and_column(bad, tmp_path):
    path = written(tmp_path / "bad.csv", f"item,count_a,count_b\nx,1,2\ny,0,{bad}")
    message = refusal(read_votes, path)
    assert "row 2 of 'count_b'" in message and len(message) < 200
    path = written(tmp_path / "sums.csv", f"item,label,count\nx,a,1\nx,b,{bad}")
    message = refusal(read_votes, path)
    assert "row 2 of 'count'" in message and len(message) < 250
    counts = np.ones((2, 3))
    counts[1, 2] = float(bad)
    np.savez(tmp_path / "bad.npz", counts=counts)
    assert "row 2, column 3" in refusal(read_votes, tmp_path / "bad.npz")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_count_that_is_missing_is_named_by_row_and_column(ending, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"item": ["a", "b"], "count_x": [1, 2], "count_y": [0, None]})
    getattr(frame, f"to_{ending}")(tmp_path / f"gap.{ending}", index=False)
    assert "row 2 of 'count_y'" in refusal(read_votes, tmp_path / f"gap.{ending}")


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_lists_and_dicts_are_no_labels(value, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    table = pa.table({"item": ["a", "b"], "label": [None, value]})
    pq.write_table(table, tmp_path / "nested.parquet")
    message = refusal(read_votes, tmp_path / "nested.parquet")
    assert "`path`" in message and type(value).__name__ in message and "row 2 of 'label'" in message


def test_tabs_are_read_from_tsv_and_other_endings_are_refused_with_those_that_are_read(tmp_path):
    text = long_csv().replace(",", "\t")
    assert read_votes(written(tmp_path / "v.tsv", text)).counts.tolist() == COUNTS
    message = refusal(read_votes, written(tmp_path / "v.txt", text))
    assert ".csv, .tsv, .parquet or .npz, got" in message
    assert "no file" in refusal(read_votes, tmp_path / "missing.tsv")


@pytest.mark.parametrize("form", ["auto", "long", "annotators", "counts"])
def test_an_empty_file_holds_no_votes(form, tmp_path):
    assert "got nothing in" in refusal(read_votes, written(tmp_path / "empty.csv", ""), form=form)


def test_the_rows_of_items_that_are_empty_or_repeated_are_named_among_many(tmp_path):
    rows = [f"x{i},1,{i % 2}" for i in range(100_000)]
    text = "\n".join(["item,count_a,count_b", *rows])
    began = time.perf_counter()
    message = refusal(read_votes, written(tmp_path / "twice.csv", f"{text}\nx99999,1,0"))
    assert "'x99999' in rows 100000 and 100001" in message
    assert time.perf_counter() - began < 20  # a comparison of each with all before it takes a minute
    message = refusal(read_votes, written(tmp_path / "empty.csv", f"{text}\n,1,0"))
    assert "row 100001" in message


@pytest.mark.parametrize(
    ("arrays", "options", "argument"),
    [
        ({"other": np.ones(3)}, {}, "counts"),
        ({"counts": np.ones(3)}, {}, "counts"),
        ({"counts": np.ones((2, 3)), "items": np.array(["a"])}, {}, "items"),
        ({"counts": np.ones((2, 3)), "items": np.array(["a", "a"])}, {}, "item"),
        ({"counts": np.ones((2, 3)), "items": np.array(["a", ""])}, {}, "item"),
        ({"counts": np.ones((2, 3)), "class_names": np.array(["a", "b", "a"])}, {}, "class_names"),
        ({"counts": np.ones((2, 3)), "class_names": np.array(["a", "", "b"])}, {}, "class_names"),
        ({"counts": np.ones((2, 3))}, {"class_names": ["a"]}, "class_names"),
        ({"counts": np.ones((2, 3))}, {"form": "long"}, "form"),
        ({"counts": np.full((2, 3), np.nan)}, {}, "counts"),
    ],
)
def test_what_is_no_archive_of_counts_is_refused_by_name(arrays, options, argument, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert f"`{argument}`" in refusal(read_votes, tmp_path / "bad.npz", **options)
