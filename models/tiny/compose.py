"""One labelled fashion query: labels are drawn first, then surfaces for them, then an order, a phrasing and slips.

Labelling rules: LABELLING.md. Every element of a query carries the split it belongs to; a query belongs to a split when
none of its elements belongs to another one, and a dev or held-out query must also hold something new to training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lexicon import ATTRIBUTES, Language, Surface, bucket, language, split_of
from noise import add_typo, dress_up, fill_numbers

SYLLABLES = ["za", "ro", "vel", "mi", "ta", "ko", "lun", "dri", "sa", "ne", "ka", "bo",
             "fi", "xo", "mar", "el", "qui", "ven", "do", "ra"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """A query, its label for every attribute, and what in it is new to training."""

    text: str
    labels: dict[str, str]
    novelty: tuple[str, ...]


@dataclass(slots=True)
class Draft:
    """A query under construction."""

    lang: Language
    split: str
    rng: random.Random
    labels: dict[str, str] = field(default_factory=dict)
    novelty: list[str] = field(default_factory=list)
    before: list[tuple[str, str]] = field(default_factory=list)
    noun: tuple[str, str] | None = None
    after: list[tuple[str, str]] = field(default_factory=list)
    clauses: list[str] = field(default_factory=list)


class Rejected(Exception):  # noqa: N818  (not an error: another draw is made)
    """The draw holds something of another split."""


def plural(word: str) -> str:
    """The English plural of a noun phrase."""
    if word.endswith(("ss", "sh", "ch", "x")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeo":
        return word[:-1] + "ies"
    return word if word.endswith("s") else word + "s"


def draw_surface(d: Draft, attribute: str, label: str, role: str, new_share: float) -> Surface | None:
    """A surface of the split, or None where the label has none in this role."""
    seen = d.lang.pick_list(attribute, label, role, "train")
    new = d.lang.pick_list(attribute, label, role, d.split) if d.split != "train" else ()
    if new and (not seen or d.rng.random() < new_share):
        d.novelty.append("synonym")
        return d.rng.choice(new)
    if d.split == "train" and d.rng.random() < 0.45:
        seen = d.lang.core_list(attribute, label, role) or seen
    return d.rng.choice(seen) if seen else None


def draw_phrase(d: Draft, section: str, new_share: float) -> str:
    """A phrasing of a section: usually a new one outside training."""
    seen = d.lang.phrase_list(section, "train")
    new = d.lang.phrase_list(section, d.split) if d.split != "train" else ()
    if new and d.rng.random() < new_share:
        d.novelty.append("phrasing")
        return d.rng.choice(new).text
    if section == "frame" and (d.split != "train" or d.rng.random() < 0.5):
        return d.rng.choice([p for p in seen if p.core]).text if d.rng.random() < 0.35 else "{q}"
    return d.rng.choice(seen).text


def choose_labels(d: Draft) -> dict[str, str]:
    """The wanted label for each mentioned attribute but the category."""
    density = d.rng.choice([0.08, 0.16, 0.16, 0.3, 0.5, 0.7] if d.split == "train" else [0.3, 0.45, 0.6, 0.75])
    wanted = {}
    for attribute in ATTRIBUTES[1:]:
        if d.rng.random() < density:
            options = sorted({label for a, label, _ in d.lang.surfaces if a == attribute})
            label = d.rng.choice(options)
            if label == "none" and d.rng.random() < 0.5:
                continue
            wanted[attribute] = label
    return wanted


def add_category(d: Draft, wanted: dict[str, str]) -> None:
    """The head noun, which may bring labels of other attributes with it."""
    r = d.rng.random()
    if r < 0.07 and wanted:
        return
    options = ["dress", "jeans", "shirt", "trench", "skirt", "tee", "hoodie", "knit", "other", "other"]
    label = "none" if r < 0.17 else d.rng.choice(options)
    surface = draw_surface(d, "category", label, "noun", 0.06)
    if surface is None or any(a in wanted for a, _ in surface.labels):
        surface = d.rng.choice([s for s in d.lang.pick_list("category", label, "noun", "train") if len(s.labels) < 2])
    d.labels.update(surface.labels)
    text = surface.text
    if d.lang.name == "en" and surface.plural and d.rng.random() < 0.3:
        text = plural(text)
    d.noun = ("category", text)


def colour_pair(d: Draft) -> str:
    """Two plain colours, which together are ruled multicolor."""
    names = ["black", "white", "grey", "red", "pink", "blue", "green", "yellow"]
    if d.lang.name == "zh":
        a, b = d.rng.sample("黑白灰红粉蓝绿黄", 2)
        return d.rng.choice([f"{a}{b}拼色", f"{a}{b}相间", f"{a}{b}色", f"{a}色和{b}色"])
    a, b = d.rng.sample(names, 2)
    return d.rng.choice([f"{a} and {b}", f"{a} & {b}", f"{a}/{b}", f"{a}-{b}", f"{a} n {b}"])


def add_mention(d: Draft, attribute: str, label: str) -> None:
    """One mention of a label, in a role that the language has for it."""
    roles = d.lang.roles(attribute, label)
    r = d.rng.random()
    role = "pre" if r < 0.6 else "post" if r < 0.88 else "cl"
    if len(d.clauses) > 1 and role == "cl":
        role = "post"
    section = f"{role} {attribute}"
    if role != "pre" and section in d.lang.phrasings and (role not in roles or d.rng.random() < 0.6):
        source = (
            "obj" if "obj" in roles else "pre" if attribute in ("colour", "material") or d.lang.name == "zh" else ""
        )
        pattern = draw_phrase(d, section, 0.5) if source else ""
    else:
        source, pattern = (role if role in roles else "pre" if "pre" in roles else roles[0]), "{x}"
        if source == "obj":
            pattern = "for {x}"
        role = "post" if source == "obj" else source
    if not source:
        source, role, pattern = ("pre", "pre", "{x}") if "pre" in roles else (roles[0], roles[0], "{x}")
    surface = draw_surface(d, attribute, label, source, 0.06)
    if surface is None or any(a in d.labels for a, _ in surface.labels):
        raise Rejected
    text = surface.text
    if label == "multicolor" and source == "pre" and d.rng.random() < 0.35:
        text = colour_pair(d)
    d.labels.update(surface.labels)
    text = pattern.replace("{x}", text)
    if role == "cl":
        d.clauses.append(text)
    else:
        (d.before if role == "pre" else d.after).append((attribute, text))


def add_noise(d: Draft) -> None:
    """Words that mean nothing to any attribute."""
    if d.rng.random() < 0.25:
        d.before.append(("noise", draw_phrase(d, "noise pre", 0.2)))
    if d.rng.random() < 0.12:
        d.after.append(("noise", draw_phrase(d, "noise post", 0.2)))
    if d.rng.random() < 0.10:
        d.clauses.append(draw_phrase(d, "noise cl", 0.2))
    if d.rng.random() < 0.05:
        d.before.append(("noise", "".join(d.rng.choices(SYLLABLES, k=d.rng.choice([2, 3, 3])))))
    if d.split == "train" and d.rng.random() < 0.20:
        words = d.rng.choices(d.lang.fillers, k=d.rng.choice([1, 1, 2, 3]))
        d.rng.choice([d.before, d.after]).append(("noise", (" " if d.lang.name == "en" else "").join(words)))
    if d.rng.random() < 0.02:
        d.clauses += [draw_phrase(d, "noise cl", 0.2) for _ in range(d.rng.randint(2, 8))]


def check_order(d: Draft, parts: list[tuple[str, str]]) -> None:
    """Reject word orders of another split; only orders of four parts or more are split, so that plain ones stay."""
    if len(parts) < 4:
        return
    split = split_of("order", *(attribute for attribute, _ in parts), heldout=0.12, dev=0.05)
    if split == d.split != "train":
        d.novelty.append("order")
    elif split != "train":
        raise Rejected


def check_pairs(d: Draft) -> None:
    """Reject label combinations of another split."""
    items = sorted(d.labels.items())
    for i, first in enumerate(items):
        for second in items[i + 1 :]:
            b = bucket("pair", *first, *second)
            split = "heldout" if b < 0.02 else "dev" if b < 0.03 else "train"
            if split == d.split != "train":
                d.novelty.append("combination")
            elif split != "train":
                raise Rejected


def arrange_en(d: Draft) -> str:
    """The English item phrase: in natural order, as keywords, or with the noun first."""
    rng = d.rng
    rng.shuffle(d.before)
    rng.shuffle(d.after)
    noun = [d.noun] if d.noun else []
    parts, join = d.before + noun + d.after, " "
    style = rng.random()
    if style < 0.22:
        parts = d.before + noun
        rng.shuffle(parts)
        parts, join = parts + d.after, rng.choice([" ", " ", " ", ", ", ","])
    elif style < 0.36:
        parts, join = noun + d.before + d.after, rng.choice([" ", " ", ", ", " - "])
    check_order(d, parts)
    texts = [text for _, text in parts]
    if len(d.before) > 1 and join == " " and rng.random() < 0.08:
        texts[0] += rng.choice([",", " and"])
    return join.join(texts).replace(" ,", ",")


def arrange_zh(d: Draft) -> str:
    """The Chinese item phrase: run together, as keywords with blanks, or with the noun first."""
    rng = d.rng
    rng.shuffle(d.before)
    rng.shuffle(d.after)
    noun = [d.noun] if d.noun else []
    parts = d.before + noun + d.after
    style = rng.random()
    if style < 0.30:
        parts = d.before + noun
        rng.shuffle(parts)
        parts += d.after
    elif style < 0.42:
        parts = noun + d.before + d.after
    check_order(d, parts)
    if rng.random() < 0.36:
        return rng.choice([" ", " ", ",", "，", "、", "  "]).join(text for _, text in parts)
    out = ""
    for i, (_, text) in enumerate(parts):
        glue = ""
        if out and out[-1].isascii() and out[-1].isalnum() and text[0].isascii() and text[0].isalnum():
            glue = " "
        elif out and parts[i] in d.after:
            glue = rng.choice(["", "", " ", ",", "，"])
        elif out and parts[i] in noun and not out.endswith("的"):
            glue = rng.choice(["", "", "的"])
        out += glue + text
    return out


def draft_query(d: Draft) -> str:
    """The text of one query, before slips."""
    rng, chinese = d.rng, d.lang.name == "zh"
    if rng.random() < 0.06:
        return draw_phrase(d, "none", 0.8)
    wanted = choose_labels(d)
    add_category(d, wanted)
    mentions = [(a, label) for a, label in wanted.items() if a not in d.labels]
    rng.shuffle(mentions)
    for attribute, label in mentions:
        if attribute in d.labels:
            continue
        if chinese and rng.random() < 0.05 and "pre" in language("en").roles(attribute, label):
            d.lang = language("en")
            add_mention(d, attribute, label)
            d.lang = language("zh")
        else:
            add_mention(d, attribute, label)
    add_noise(d)
    check_pairs(d)
    if not (d.before or d.noun or d.after):
        d.noun = ("category", "穿的" if chinese else "something")
    text = (arrange_zh if chinese else arrange_en)(d)
    text = draw_phrase(d, "frame", 0.6).replace("{q}", text)
    stop = rng.choice(["，", ",", " ", "。", "，"]) if chinese else rng.choice([", ", ". ", " ", "; ", " - "])
    for clause in d.clauses:
        text = f"{clause}{stop}{text}" if rng.random() < 0.4 else f"{text}{stop}{clause}"
    return text


def make_query(split: str, rng: random.Random, slips: bool = True) -> Query:
    """A query of the split, with or without typing slips; draws again until one fits.

    Outside training a query must hold at least one thing that training never saw: a phrasing, a word order, a
    combination of labels, a synonym or a typo.
    """
    while True:
        lang = language("zh" if rng.random() < 0.45 else "en")
        d = Draft(lang, split, rng)
        try:
            text = fill_numbers(draft_query(d), rng)
        except Rejected:
            continue
        if not slips:
            return Query(text, {a: d.labels.get(a, "none") for a in ATTRIBUTES}, ())
        # Training sees more slips than the other splits: capitals and typos are what the network finds hardest.
        hard = split == "train"
        for _ in range(rng.choices([0, 1, 2], [0.60, 0.28, 0.12] if hard else [0.74, 0.21, 0.05])[0]):
            text, slipped = add_typo(text, split, lang.words, rng)
            if slipped and split != "train":
                d.novelty.append("typo")
        if split != "train" and not d.novelty:
            continue
        text = dress_up(text, lang.name == "zh", 0.13 if hard else 0.05, rng)
        labels = {a: d.labels.get(a, "none") for a in ATTRIBUTES}
        return Query(text, labels, tuple(sorted(set(d.novelty))))
