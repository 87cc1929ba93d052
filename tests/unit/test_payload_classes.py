"""Classes come back as instances of the reader's own classes, unvalidated, whole, and across changes of the class."""

from __future__ import annotations

import enum
import functools
import typing
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Required, TypeVar

import numpy
import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, create_model, model_validator
from typing_extensions import TypedDict

from sqlreplay.errors import BadArgument, InvalidGroup, PayloadDamaged, PayloadUnsupported
from sqlreplay.payload import LASTING, Codec

if typing.TYPE_CHECKING:
    from nowhere import Nothing  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Corner(enum.Enum):
    ORIGIN = (0, 0)


class Leaf(BaseModel):
    name: str = "leaf"
    weights: list[float] = []


class Twig(BaseModel):
    name: str = "twig"


class Spot(NamedTuple):
    x: int
    leaf: Leaf | None = None


Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True, slots=True)
class Sealed:
    leaf: Leaf
    kind: Colour = Colour.RED


@dataclass
class Loose:
    count: int
    shared: ClassVar[int] = 5
    later: int = field(init=False)
    tags: list[str] = field(default_factory=list)


class Bud(BaseModel):
    """Named by the typed dict alone."""


class Info(TypedDict, total=False):
    bud: Required[Bud]
    picture: numpy.ndarray | None


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


class Tree(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    children: list[Tree] = []
    colour: Colour | None = None
    level: Level | Rights | Corner | None = None
    leaf: Leaf | Twig | None = None
    spot: Spot | None = None
    pair: Pair | None = None
    sealed: Sealed | None = None
    by_name: dict[str, list[Leaf]] = {}
    either: str | dict[str, Any] | Leaf | None = None
    row: tuple[Leaf, int] | None = None
    info: Info | None = None
    box: Box[Leaf] | None = None
    marked: Annotated[list[Leaf], Field(max_length=9)] = []
    choice: Literal[Colour.BLUE] | int = 0
    picture: numpy.ndarray | list[numpy.ndarray] | None = None


class Plain:
    fallback = "on the class"

    def __init__(self, needed: int) -> None:
        raise AssertionError("the codec must not call this")


class Slotted:
    __slots__ = ("__dict__", "__hidden", "shown")


class OnlySlots:
    __slots__ = ("first", "second")


def round_trip(item: Any) -> Any:
    codec = Codec(type(item))
    return codec.decode(codec.encode([item])).items[0]


@pytest.mark.parametrize(
    "tree",
    [
        Tree(),
        Tree(children=[Tree(children=[Tree(colour=Colour.BLUE)]), Tree()]),
        Tree(level=Level.LOW),
        Tree(level=Rights.READ | Rights.WRITE),
        Tree(level=Corner.ORIGIN),
        Tree(leaf=Leaf(weights=[0.5])),
        Tree(leaf=Twig()),
        Tree(spot=Spot(1, Leaf()), pair=Pair(1, (2,)), sealed=Sealed(Leaf(), Colour.BLUE)),
        Tree(by_name={"a": [Leaf(), Leaf(name="b")], "c": []}),
        Tree(either="text"),
        Tree(either={"a": Leaf()}),
        Tree(either=Leaf(name="x")),
        Tree(row=(Leaf(), 3), info={"bud": Bud()}),
        Tree(box=Box[Leaf](content=Leaf()), marked=[Leaf()], choice=Colour.BLUE),
    ],
    ids=lambda tree: ",".join(sorted(tree.model_fields_set)) or "empty",
)
def test_annotations_name_what_is_rebuilt(tree: Tree) -> None:
    found = round_trip(tree)
    assert found == tree
    assert repr(found) == repr(tree)
    assert found.model_fields_set == tree.model_fields_set
    assert list(vars(found)) == list(vars(tree))


def test_many_items_of_different_shape_share_a_table() -> None:
    group = [Tree(leaf=Leaf()), Tree(leaf=Twig(), colour=Colour.RED), Tree(), Tree(leaf=None, choice=7)]
    codec = Codec(Tree)
    found = codec.decode(codec.encode(group)).items
    assert found == group
    assert [item.model_fields_set for item in found] == [item.model_fields_set for item in group]


def test_items_of_a_group_share_no_mutable_value() -> None:
    group = [Tree(marked=[Leaf(weights=[1.0] * 40)], by_name={"a": []}) for _ in range(4)]
    codec = Codec(Tree)
    first, *others = codec.decode(codec.encode(group)).items
    first.marked[0].weights.append(9.0)
    first.by_name["b"] = []
    first.children.append(Tree())
    first.model_fields_set.add("leaf")
    assert others == group[1:]
    assert all("leaf" not in other.model_fields_set for other in others)


def test_a_model_keeps_extra_fields_and_private_attributes_but_not_caches() -> None:
    class Rich(BaseModel):
        model_config = ConfigDict(extra="allow")

        number: int = 0
        _secret: Leaf = PrivateAttr(default_factory=Leaf)
        _unset: int = PrivateAttr()

        @functools.cached_property
        def cached(self) -> object:
            return object()

    item = Rich(number=1, more=(1, 2))  # type: ignore[call-arg]
    item._secret = Leaf(name="kept")
    assert item.cached is item.cached
    found = round_trip(item)
    assert found.__pydantic_extra__ == {"more": (1, 2)}
    assert found._secret == Leaf(name="kept")
    assert "cached" not in vars(found)
    assert found.model_fields_set == {"number", "more"}
    with pytest.raises(AttributeError):
        _ = found._unset


def test_a_private_attribute_that_was_added_gets_its_default() -> None:
    class Before(BaseModel):
        _old: int = PrivateAttr(default=1)

    class After(BaseModel):
        _old: int = PrivateAttr(default=2)
        _new: list[int] = PrivateAttr(default_factory=list)

    [found] = Codec(After).decode(Codec(Before).encode([Before()])).items
    assert (found._old, found._new) == (1, [])
    [bare] = Codec(create_model("Bare")).decode(Codec(Before).encode([Before()])).items
    assert bare.__pydantic_private__ is None


def test_columns_of_equal_floats_keep_their_sign_and_columns_of_equal_values_their_type() -> None:
    group = [Loose(count) for count in (0.0, -0.0, 0.0)]  # type: ignore[arg-type]
    codec = Codec(Loose)
    assert [repr(item.count) for item in codec.decode(codec.encode(group)).items] == ["0.0", "-0.0", "0.0"]
    group = [Loose(count) for count in (1, True, 1.0)]  # type: ignore[arg-type]
    assert [repr(item.count) for item in codec.decode(codec.encode(group)).items] == ["1", "True", "1.0"]


def test_validators_and_init_do_not_run() -> None:
    class Strict(BaseModel):
        number: int

        @model_validator(mode="after")
        def refuse(self) -> Strict:
            raise AssertionError("the codec must not call this")

    item = Strict.model_construct(number="not a number")
    assert round_trip(item).number == "not a number"
    plain = object.__new__(Plain)
    plain.extra = [1, (2, 3)]
    found = round_trip(plain)
    assert type(found) is Plain
    assert vars(found) == {"extra": [1, (2, 3)]}
    assert round_trip(RootModel[list[int]]([1])).root == [1]


def test_slots_unset_attributes_and_frozen_classes() -> None:
    slotted = Slotted()
    slotted.shown, slotted._Slotted__hidden, slotted.free = 1, 2, 3
    found = round_trip(slotted)
    assert (found.shown, found._Slotted__hidden, vars(found)) == (1, 2, {"free": 3})
    partly = OnlySlots()
    partly.second = 4
    found = round_trip(partly)
    assert found.second == 4
    assert not hasattr(found, "first")
    assert vars(round_trip(Loose(1))) == {"count": 1, "tags": []}
    assert vars(round_trip(Tree.model_construct())) == vars(Tree.model_construct())
    bare = Leaf.model_construct()
    del bare.__dict__["name"]
    codec = Codec(Leaf)
    found = codec.decode(codec.encode([bare, Leaf()])).items
    assert [vars(item) for item in found] == [{"weights": []}, {"name": "leaf", "weights": []}]


def test_an_enum_that_no_annotation_names_is_stored_by_value() -> None:
    codec = Codec(dict)
    [found] = codec.decode(codec.encode([{"a": Colour.RED, "b": [Level.LOW], "c": Corner.ORIGIN}])).items
    assert found == {"a": "red", "b": [1], "c": (0, 0)}
    assert type(found["a"]) is str
    assert type(found["b"][0]) is int
    leaf = Sealed(Leaf(), "red")  # type: ignore[arg-type]
    assert round_trip(leaf).kind == "red"


def test_unresolvable_annotations_only_cost_their_own_field() -> None:
    @dataclass
    class Half:
        leaf: Leaf
        nothing: Nothing

    assert round_trip(Half(Leaf(), [1])) == Half(Leaf(), [1])


@pytest.mark.parametrize(
    ("item", "path"),
    [
        (Tree(either={"deep": [Tree(), {"x": Loose(1)}]}), r"\[0\]\.either\.deep\[1\]\.x: .*Loose"),
        (Tree(children=[Tree(), Tree(either={"a b": print})]), r"\[0\]\.children\[1\]\.either\['a b'\]: .*function"),
        (Tree.model_construct(leaf=type("Sub", (Leaf,), {})()), r"\[0\]\.leaf: .*Sub.* Annotate"),
        (Tree.model_construct(spot=Spot(1, print)), r"\[0\]\.spot\.leaf: "),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_names_the_path(item: Tree, path: str) -> None:
    with pytest.raises(PayloadUnsupported, match=path):
        Codec(Tree).encode([item])
    with pytest.raises(PayloadUnsupported, match=path.replace(r"\[0\]", r"\[2\]", 1)):
        Codec(Tree).encode([Tree(), Tree(), item])


def test_undeclared_attributes_are_refused() -> None:
    loose = Loose(1)
    loose.surprise = 1  # type: ignore[attr-defined]
    with pytest.raises(PayloadUnsupported, match=r"\[1\]\.surprise: Loose does not declare"):
        Codec(Loose).encode([Loose(1), loose])


@pytest.mark.parametrize("item_type", [int, list, str, type(None), numpy.ndarray, Colour, "text", None])
def test_what_cannot_be_an_item_type_is_refused_at_once(item_type: Any) -> None:
    with pytest.raises(BadArgument, match="item_type"):
        Codec(item_type)


def test_two_classes_of_one_name_are_told_apart_by_their_module() -> None:
    inner = create_model("Leaf", __module__="elsewhere", other=(int, 3))
    outer = create_model("Outer", a=(Leaf, ...), b=(inner, ...))
    found = round_trip(outer(a=Leaf(), b=inner()))
    assert type(found.a) is Leaf
    assert type(found.b) is inner
    twin = create_model("Leaf", __module__="elsewhere", another=(int, 3))
    with pytest.raises(BadArgument, match="two classes"):
        Codec(create_model("Outer", b=(inner, ...), c=(twin, ...)))


def test_items_of_another_class_are_refused() -> None:
    with pytest.raises(InvalidGroup, match=r"\[1\] is of type Twig, expected Leaf.*item_type=Twig"):
        Codec(Leaf).encode([Leaf(), Twig()])  # type: ignore[list-item]
    for nothing in ([], None, {"a": 1}, "text"):
        with pytest.raises(InvalidGroup, match="non-empty list"):
            Codec(Leaf).encode(nothing)  # type: ignore[arg-type]


def test_a_field_that_was_added_gets_its_default() -> None:
    older = create_model("State", a=(int, 1))
    parts = Codec(older).encode([older(a=5), older(a=5)])
    newer = create_model("State", a=(int, 1), b=(list[int], Field(default_factory=list)), c=(str, "c"), d=(list, [7]))
    first, second = Codec(newer).decode(parts).items
    assert vars(first) == {"a": 5, "b": [], "c": "c", "d": [7]}
    assert first.b is not second.b
    assert first.d is not second.d
    required = create_model("State", a=(int, 1), b=(int, ...))
    with pytest.raises(PayloadDamaged, match="no field 'b', which State requires"):
        Codec(required).decode(parts)


def test_a_field_that_was_removed_is_an_error_or_an_extra_field() -> None:
    wide = create_model("State", a=(int, 1), gone=(tuple, (1, 2)))
    parts = Codec(wide).encode([wide(), wide(gone=(3,))])
    narrow = create_model("State", a=(int, 1))
    with pytest.raises(PayloadDamaged, match=r"the field 'gone', which State does not have.*item_type"):
        Codec(narrow).decode(parts)
    tolerant = create_model("State", __config__=ConfigDict(extra="allow"), a=(int, 1))
    assert [item.gone for item in Codec(tolerant).decode(parts).items] == [(1, 2), (3,)]
    open_class = type("State", (), {})
    assert [item.gone for item in Codec(open_class).decode(parts).items] == [(1, 2), (3,)]


def test_a_class_the_reader_does_not_know_is_named() -> None:
    writer = create_model("State", value=(Leaf | Twig | None, None))
    reader = create_model("State", value=(Twig | None, None))
    with pytest.raises(PayloadDamaged, match="hold a 'Leaf', the annotations of the item type name only State, Twig"):
        Codec(reader).decode(Codec(writer).encode([writer(value=Leaf())]))


def test_items_of_another_kind_are_named() -> None:
    with pytest.raises(PayloadDamaged, match="found items of type 'Leaf', this codec reads 'dict'"):
        Codec(dict).decode(Codec(Leaf).encode([Leaf()]))
    with pytest.raises(PayloadDamaged, match="found items of type 'bytes', this codec reads 'Leaf'"):
        Codec(Leaf).decode(Codec(bytes).encode([b"x"]))


class Answer(BaseModel):
    prompt: str
    response: str
    score: float = 0.5
    steps: list[int] = [1]
    ids: list[int] | None = None


RESPONSE_FIELDS = {"response", "score", "steps", "ids", "not a field"}


def test_without_its_response_a_group_is_read_from_one_section() -> None:
    group = [Answer(prompt="a", response="the answer", score=1.0, steps=[2, 3], ids=[4]) for _ in range(3)]
    codec = Codec(Answer, response_fields=RESPONSE_FIELDS)
    parts = codec.encode(group, steps=[2, None, 3])
    assert [part.section for part in parts] == [0, 1]
    assert codec.decode(parts) == (group, [2, None, 3])
    items, steps = codec.decode(parts[:1], with_response=False)
    assert steps == codec.read_steps(parts[:1]) == [2, None, 3]
    assert [vars(item) for item in items] == [
        {"prompt": "a", "response": None, "score": 0.5, "steps": [1], "ids": None}
    ] * 3
    assert items[0].steps is not items[1].steps
    assert codec.decode(parts, with_response=False) == (items, steps)
    assert b"the answer" not in parts[0].body
    assert b"the answer" in parts[1].body
    with pytest.raises(PayloadDamaged, match="section 1"):
        codec.decode(parts[:1])


def test_plain_classes_have_a_response_too() -> None:
    class Sample:
        response = "class value"

    sample = Sample()
    sample.prompt, sample.ids, sample.response = "p", [1], "r"
    codec = Codec(Sample, response_fields=RESPONSE_FIELDS)
    parts = codec.encode([sample])
    assert vars(codec.decode(parts).items[0]) == vars(sample)
    without = codec.decode([part for part in parts if part.section == LASTING], with_response=False).items[0]
    assert vars(without) == {"prompt": "p", "ids": None}
    assert without.response == "class value"
    assert len(codec.encode([Sample()])) == 1


def test_one_section_suffices_where_there_is_no_response() -> None:
    assert len(Codec(Leaf, response_fields=RESPONSE_FIELDS).encode([Leaf()])) == 1
    assert len(Codec(dict, response_fields=RESPONSE_FIELDS).encode([{"response": "a"}])) == 1
    codec = Codec(Answer)
    [part] = codec.encode([Answer(prompt="a", response="b")])
    surplus = Codec(Answer, response_fields=RESPONSE_FIELDS).encode([Answer(prompt="a", response="b")])[1]
    with pytest.raises(PayloadDamaged, match="without one"):
        codec.decode([part, surplus])
