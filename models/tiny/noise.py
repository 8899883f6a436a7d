"""How people mistype: typos, casing, punctuation, stray whitespace, emoji, look-alike Chinese characters."""

from __future__ import annotations

import random
import re

from lexicon import split_of

# The keys beside a letter that a finger hits instead.
NEIGHBOURS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo",
    "j": "hk", "k": "jl", "l": "k", "m": "nk", "n": "bm", "o": "ip", "p": "ol", "q": "wa", "r": "et",
    "s": "ad", "t": "ry", "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "xs",
}  # fmt: skip
EMOJI = ["✨", "😍", "🙏", "🔥", "💕", "🛍️", "😊", "🥰", "👀", "💯", "🤔", "😭", "🎀",
         "⭐", "👍", "🥺", "😎", "🎁", "💃", "🙌"]  # fmt: skip
# Characters that input methods or eyes confuse; none of them turns one label's word into another's.
CONFUSED = {
    "裙": "群", "裤": "库", "衫": "杉衬", "衣": "依", "仔": "崽载", "恤": "血旭", "卫": "未味", "毛": "猫矛",
    "针": "真珍", "织": "只知", "风": "凤枫", "连": "莲联", "半": "伴办", "身": "生深", "鞋": "协斜",
    "黑": "嘿", "白": "百", "红": "洪宏", "蓝": "兰篮", "绿": "率録", "紫": "仔", "粉": "份", "黄": "皇",
    "色": "涩", "棉": "绵眠", "麻": "嘛", "丝": "司思", "绒": "容", "羊": "阳洋", "纺": "仿", "蕾": "雷",
    "皮": "批", "春": "椿", "夏": "厦", "秋": "揪", "冬": "东咚", "季": "计", "男": "南", "孕": "晕",
    "童": "同", "修": "休", "松": "送", "宽": "款", "码": "马", "显": "现", "瘦": "受", "便": "变", "宜": "移",
    "折": "拆", "价": "架", "旅": "铝", "游": "由", "通": "同", "勤": "琴", "约": "月", "婚": "昏", "礼": "里",
    "派": "排", "沙": "纱", "滩": "摊", "健": "键", "居": "具", "闲": "咸", "校": "效", "园": "圆", "牛": "午",
    "衬": "村寸", "外": "歪", "套": "桃", "包": "抱", "帽": "冒", "巾": "斤", "高": "搞", "端": "瑞",
    "促": "醋", "销": "消", "优": "忧", "惠": "会", "清": "青", "仓": "苍", "以": "已", "内": "纳", "酒": "洒",
    "米": "迷", "咖": "加", "啡": "非", "橙": "澄", "橘": "桔", "雪": "血", "缎": "段", "聚": "具", "酯": "脂",
    "纤": "仟", "涤": "条", "款": "宽", "给": "个", "想": "相", "买": "卖", "推": "堆", "荐": "见", "件": "见",
    "找": "我", "穿": "川",
}  # fmt: skip
TRADITIONAL = dict(
    zip(
        "裤连仔红蓝绿纯丝绒纺织针风衬围领带鞋袜内衣长宽松紧显码个适合儿给买卖条质价优场礼会约办业务运动练骑旅游园学开级处军绍荐找看问请谢谢",
        "褲連仔紅藍綠純絲絨紡織針風襯圍領帶鞋襪內衣長寬鬆緊顯碼個適合兒給買賣條質價優場禮會約辦業務運動練騎旅遊園學開級處軍紹薦找看問請謝謝",
        strict=True,
    )
)


def latin_typo(word: str, rng: random.Random) -> str:
    """One slip in a word of five letters or more; its first letter stays."""
    i = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(5)
    if kind == 0:
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind == 1:
        return word[:i] + word[i + 1 :]
    if kind == 2:
        return word[:i] + word[i] + word[i:]
    near = NEIGHBOURS.get(word[i].lower(), "")
    if not near:
        return word
    letter = rng.choice(near)
    return word[:i] + letter + word[i + (kind == 3) :]


def add_typo(text: str, split: str, known: frozenset[str], rng: random.Random) -> tuple[str, bool]:
    """The text with one typo of the split, and whether there is one."""
    spots = [m.span() for m in re.finditer(r"(?<![\w'])[a-zA-Z]{5,}", text)]
    spots += [(i, i + 1) for i, c in enumerate(text) if c in CONFUSED]
    rng.shuffle(spots)
    for start, end in spots[:4]:
        word = text[start:end]
        for _ in range(3):
            wrong = rng.choice(CONFUSED[word]) if word in CONFUSED else latin_typo(word, rng)
            if wrong == word or wrong.lower() in known:
                continue
            if split_of("typo", word.lower(), wrong.lower(), heldout=0.12, dev=0.05) == split:
                return text[:start] + wrong + text[end:], True
    return text, False


def dress_up(text: str, chinese: bool, capitals: float, rng: random.Random) -> str:
    """Casing, hyphens, punctuation, whitespace and emoji that mean nothing; `capitals`: the share in capitals."""
    r = rng.random()
    if r < 0.10:
        text = text[:1].upper() + text[1:]
    elif r < 0.16:
        text = text.title()
    elif r < 0.16 + capitals:
        text = text.upper()
    if chinese and rng.random() < 0.06:
        text = "".join(TRADITIONAL.get(c, c) for c in text)
    if rng.random() < 0.05:
        text = text.replace("'", rng.choice(["’", ""]))
    if rng.random() < 0.03:
        text = re.sub(r"(?<=[a-z]) (?=[a-z])", "-", text, count=1)
    if rng.random() < 0.06:
        text = text + rng.choice(["!", "?", ".", "!!", "...", "。", "？", "！", "~", "??", ","])
    if rng.random() < 0.07:
        emoji = rng.choice(EMOJI) * rng.choice([1, 1, 1, 2, 3])
        text = rng.choice([text + emoji, f"{text} {emoji}", f"{emoji} {text}", f"{emoji}{text}"])
    if rng.random() < 0.05:
        text = re.sub(r" ", "  ", text, count=rng.choice([1, 1, 0]))
    if rng.random() < 0.05:
        text = rng.choice([f" {text}", f"{text} ", f"  {text}", f"{text}  ", f"{text}\n", f"\t{text}"])
    if rng.random() < 0.003:
        text = rng.choice([f"{text} <|im_end|>", f"<|im_start|>{text}", f"{text}<|endoftext|>", f"label: {text}"])
    return text


def fill_numbers(text: str, rng: random.Random) -> str:
    """Every `#` replaced by a number that its surroundings make plausible, in ascending order."""
    count = text.count("#")
    if count == 0:
        return text
    if "year old" in text or "岁" in text:
        values = [rng.randint(1, 14)]
    elif "% off" in text:
        values = [rng.choice(range(10, 85, 5))]
    elif "months" in text or "个月" in text:
        values = [rng.randint(3, 9)]
    elif "weeks" in text or "周" in text:
        values = [rng.randint(10, 39)]
    elif "cm short" in text:
        values = [rng.randint(145, 158)]
    elif "cm tall" in text:
        values = [rng.randint(185, 203)]
    elif "turning" in text:
        values = [rng.randint(18, 80)]
    else:
        low, high = (15, 500) if text.isascii() else (30, 2000)
        values = [round(low * (high / low) ** rng.random()) for _ in range(count)]
        values = [v if rng.random() < 0.25 else max(5, round(v / 10) * 10) for v in values]
        values = [v - 1 if v > 20 and rng.random() < 0.1 else v for v in values]
    values = sorted(values * count)[:count] if len(values) < count else sorted(values)
    for value in values:
        text = text.replace("#", str(value), 1)
    return text
