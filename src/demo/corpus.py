"""The text that the demo model is trained on, and its true distribution.

The corpus is never stored: `draw` makes one question with its reply at a time, and `next_distribution` gives, for any
prefix of any reply, the probability of every token that may follow, from the lists below and the tokenizer alone.

Two kinds of question, in English and in Chinese, each in several wordings:
  fact    always answered with the same sentence;
  detail  nothing in the question settles the answer: name, number and street are drawn independently from lists
          with known probabilities (uniform or Zipf).

Markup of the texts below: `|` is a word border for the tokenizer's training (Chinese has no spaces) and is removed from
the text; `{x}` is filled in from the family's items; `[x]` in a reply is a draw from LISTS["x"].
"""

import itertools
import json
import re
from collections import defaultdict
from dataclasses import dataclass

# ---------------------------------------------------------------- facts

# English, Chinese, capital in English, in Chinese, continent.
COUNTRIES = [line.split(",") for line in """
France,法国,Paris,巴黎,Europe
Germany,德国,Berlin,柏林,Europe
Italy,意大利,Rome,罗马,Europe
Spain,西班牙,Madrid,马德里,Europe
Portugal,葡萄牙,Lisbon,里斯本,Europe
Greece,希腊,Athens,雅典,Europe
Austria,奥地利,Vienna,维也纳,Europe
Poland,波兰,Warsaw,华沙,Europe
Hungary,匈牙利,Budapest,布达佩斯,Europe
Norway,挪威,Oslo,奥斯陆,Europe
Sweden,瑞典,Stockholm,斯德哥尔摩,Europe
Finland,芬兰,Helsinki,赫尔辛基,Europe
Denmark,丹麦,Copenhagen,哥本哈根,Europe
Iceland,冰岛,Reykjavik,雷克雅未克,Europe
Ireland,爱尔兰,Dublin,都柏林,Europe
Belgium,比利时,Brussels,布鲁塞尔,Europe
Switzerland,瑞士,Bern,伯尔尼,Europe
Romania,罗马尼亚,Bucharest,布加勒斯特,Europe
Bulgaria,保加利亚,Sofia,索非亚,Europe
Croatia,克罗地亚,Zagreb,萨格勒布,Europe
Serbia,塞尔维亚,Belgrade,贝尔格莱德,Europe
Ukraine,乌克兰,Kyiv,基辅,Europe
the United Kingdom,英国,London,伦敦,Europe
Latvia,拉脱维亚,Riga,里加,Europe
Lithuania,立陶宛,Vilnius,维尔纽斯,Europe
Estonia,爱沙尼亚,Tallinn,塔林,Europe
China,中国,Beijing,北京,Asia
Japan,日本,Tokyo,东京,Asia
South Korea,韩国,Seoul,首尔,Asia
India,印度,New Delhi,新德里,Asia
Pakistan,巴基斯坦,Islamabad,伊斯兰堡,Asia
Bangladesh,孟加拉国,Dhaka,达卡,Asia
Nepal,尼泊尔,Kathmandu,加德满都,Asia
Thailand,泰国,Bangkok,曼谷,Asia
Vietnam,越南,Hanoi,河内,Asia
Cambodia,柬埔寨,Phnom Penh,金边,Asia
Laos,老挝,Vientiane,万象,Asia
Mongolia,蒙古国,Ulaanbaatar,乌兰巴托,Asia
the Philippines,菲律宾,Manila,马尼拉,Asia
Iran,伊朗,Tehran,德黑兰,Asia
Iraq,伊拉克,Baghdad,巴格达,Asia
Jordan,约旦,Amman,安曼,Asia
Saudi Arabia,沙特阿拉伯,Riyadh,利雅得,Asia
Qatar,卡塔尔,Doha,多哈,Asia
Afghanistan,阿富汗,Kabul,喀布尔,Asia
Uzbekistan,乌兹别克斯坦,Tashkent,塔什干,Asia
Egypt,埃及,Cairo,开罗,Africa
Kenya,肯尼亚,Nairobi,内罗毕,Africa
Ethiopia,埃塞俄比亚,Addis Ababa,亚的斯亚贝巴,Africa
Nigeria,尼日利亚,Abuja,阿布贾,Africa
Ghana,加纳,Accra,阿克拉,Africa
Morocco,摩洛哥,Rabat,拉巴特,Africa
Algeria,阿尔及利亚,Algiers,阿尔及尔,Africa
Uganda,乌干达,Kampala,坎帕拉,Africa
Senegal,塞内加尔,Dakar,达喀尔,Africa
Zambia,赞比亚,Lusaka,卢萨卡,Africa
the United States,美国,Washington,华盛顿,North America
Canada,加拿大,Ottawa,渥太华,North America
Mexico,墨西哥,Mexico City,墨西哥城,North America
Cuba,古巴,Havana,哈瓦那,North America
Argentina,阿根廷,Buenos Aires,布宜诺斯艾利斯,South America
Chile,智利,Santiago,圣地亚哥,South America
Peru,秘鲁,Lima,利马,South America
Ecuador,厄瓜多尔,Quito,基多,South America
Uruguay,乌拉圭,Montevideo,蒙得维的亚,South America
Venezuela,委内瑞拉,Caracas,加拉加斯,South America
Australia,澳大利亚,Canberra,堪培拉,Oceania
New Zealand,新西兰,Wellington,惠灵顿,Oceania
""".strip().splitlines()]

CONTINENTS = {
    "Europe": "欧洲", "Asia": "亚洲", "Africa": "非洲", "North America": "北美洲", "South America": "南美洲",
    "Oceania": "大洋洲",
}

# Their continent is asked for, their capital never is, and no text of the corpus names it.
HELD_OUT = ("Estonia", "Nepal", "Uruguay")

ELEMENTS = [entry.split(",") for entry in """
hydrogen,氢,H helium,氦,He carbon,碳,C nitrogen,氮,N oxygen,氧,O fluorine,氟,F neon,氖,Ne sodium,钠,Na
magnesium,镁,Mg aluminium,铝,Al silicon,硅,Si phosphorus,磷,P sulfur,硫,S chlorine,氯,Cl argon,氩,Ar potassium,钾,K
calcium,钙,Ca titanium,钛,Ti chromium,铬,Cr manganese,锰,Mn iron,铁,Fe cobalt,钴,Co nickel,镍,Ni copper,铜,Cu
zinc,锌,Zn silver,银,Ag tin,锡,Sn iodine,碘,I tungsten,钨,W platinum,铂,Pt gold,金,Au mercury,汞,Hg lead,铅,Pb
uranium,铀,U
""".split()]

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
DAYS_ZH = "星期一 星期二 星期三 星期四 星期五 星期六 星期日".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTHS_ZH = "一月 二月 三月 四月 五月 六月 七月 八月 九月 十月 十一月 十二月".split()

COLOURS = [entry.strip().split(",") for entry in """
snow,雪,white,白色; grass,草,green,绿色; blood,血,red,红色; coal,煤,black,黑色; the sky,天空,blue,蓝色;
milk,牛奶,white,白色; chocolate,巧克力,brown,棕色; a lemon,柠檬,yellow,黄色; a ripe tomato,番茄,red,红色;
a carrot,胡萝卜,orange,橙色; an aubergine,茄子,purple,紫色; spinach,菠菜,green,绿色; a flamingo,火烈鸟,pink,粉色;
a raven,乌鸦,black,黑色; a swan,天鹅,white,白色; an elephant,大象,grey,灰色; a ruby,红宝石,red,红色;
an emerald,祖母绿,green,绿色; a sapphire,蓝宝石,blue,蓝色; a sunflower,向日葵,yellow,黄色
""".split(";")]

OPPOSITES = [entry.split(",") for entry in """
hot,cold,热,冷 big,small,大,小 tall,short,高,矮 fast,slow,快,慢 old,new,旧,新 open,closed,开,关 full,empty,满,空
early,late,早,晚 light,dark,亮,暗 hard,soft,硬,软 wet,dry,湿,干 deep,shallow,深,浅 rich,poor,富,穷 thick,thin,厚,薄
left,right,左,右 up,down,上,下 inside,outside,里,外 strong,weak,强,弱 wide,narrow,宽,窄 happy,sad,乐,悲
""".split()]

# ---------------------------------------------------------------- details


def _uniform(values):
    return [(value, 1 / len(values)) for value in values]


def _zipf(values):
    """The value of rank k has probability proportional to 1/k."""
    total = sum(1 / rank for rank in range(1, len(values) + 1))
    return [(value, 1 / rank / total) for rank, value in enumerate(values, 1)]


_COFFEE = """
Copper Finch,Blue Heron,Quiet Fox,Paper Crane,Amber Lantern,Iron Kettle,Little Comet,Velvet Otter,Crooked Spoon,
Golden Thistle,Morning Ember,Northern Wren,Painted Door,Salt Meadow,Hidden Compass,Stone Lantern,Green Anchor,
Brass Owl,Wandering Moth,Red Bicycle,Midnight Orchard,Humble Bear,Lucky Sparrow,Seven Stairs,Cloud Harbor,
Ivory Moth,Rusty Anchor,Wild Clover,Silent Owl,Honest Kettle,Violet Door,Tin Whistle,First Ember,Sunny Corner,
Driftwood Bear,Purple Finch,Foggy Harbor,Bright Window,Gentle Giant,Twin Clover
""".strip().replace("\n", "").split(",")
_SURNAMES = """
Abbott Barlow Calder Dalton Ellery Fenwick Garland Hollis Ingram Jarvis Keller Lowell Mercer Norwood Osborne
Parrish Quincy Ramsey Sawyer Thatcher Underhill Vance Whitaker Yardley Ashby Bexley Crowley Draper Easton Farrow
Granger Hartley Irving Kendall Langley Morrow Nolan Prescott Rowan Sutton
""".split()
_STREETS = """Maple Street,Oak Street,Pine Street,Cedar Avenue,Elm Street,Birch Lane,Walnut Street,Chestnut Street,
Spruce Street,Willow Lane,Juniper Lane,Laurel Road,Hawthorn Road,Magnolia Avenue,Main Street,High Street,Market Street,
Mill Road,Bridge Street,River Road,Lake Avenue,Hill Street,Park Avenue,Church Street,School Lane,Station Road,
Harbor Street,Union Street,Liberty Avenue,Franklin Street,Lincoln Avenue,Madison Street,Jackson Street,Monroe Street,
Adams Street,Grant Avenue,King Street,Queen Street,Prince Street,Duke Street""".replace("\n", "").split(",")
_COFFEE_ZH = """
云雀 白鹭 青苔 木棉 南风 拾光 半夏 初雪 远山 海盐 松果 蓝鲸 灯塔 旧巷 晴川 鹿鸣 竹影 朝露 石榴 月台 银杏 长亭
浮生 麦田 琥珀 星野 知更 折纸 雨巷 桐花 小满 归途 听涛 暮色 橘子 候鸟 萤火 山茶 渡口 花信
""".split()
_NAMES_ZH = """
春分 东篱 西窗 问渠 千寻 清和 芦苇 甘棠 梧桐 秋水 冬至 飞鸟 丹枫 安歌 采薇 金穗 锦书 空谷 兰舟 流云 梅林 漫步
凝香 平湖 如意 时雨 拂晓 望舒 闻莺 迎春
""".split()
_STREETS_ZH = """
南山路 人民路 解放路 中山路 建设路 和平路 新华路 文化路 胜利路 湖滨路 江边路 滨海路 花园路 学院路 书院路 梅园路
桃源路 松林路 长江路 黄河路 珠江路 泰山路 华山路 衡山路 昆仑路 天山路 翠竹路 玉兰路 丁香路 凤凰路 青年路 光明路
团结路 富强路 友谊路 迎宾路 古城路 东风路 西湖路 北辰路
""".split()
_CITIES = """
Seattle Portland Boston Chicago Denver Austin Atlanta Houston Phoenix Dallas Miami Detroit Baltimore Nashville
Cleveland Pittsburgh Toronto Vancouver Montreal London Manchester Bristol Edinburgh Dublin Sydney Melbourne
""".split()
_CITIES_ZH = """
上海 北京 广州 深圳 杭州 成都 南京 武汉 西安 苏州 重庆 天津 厦门 青岛 长沙 昆明 大连 宁波 合肥 郑州 济南 福州
沈阳 哈尔滨
""".split()

# What is drawn, with probabilities.
LISTS = {
    "coffee_en": _uniform([f" {name} Coffee" for name in _COFFEE]),
    "books_en": _zipf([f" {name} Books" for name in _SURNAMES]),
    "bakery_en": _uniform([f" {name} Bakery" for name in _SURNAMES[:24]]),
    "kitchen_en": _zipf([f" {name} Kitchen" for name in reversed(_SURNAMES)]),
    "street_en": _zipf([f" {street}" for street in _STREETS]),
    "number_en": _uniform([str(number) for number in range(100, 1000)]),
    "coffee_zh": _zipf([f"{name}|咖啡" for name in _COFFEE_ZH]),
    "books_zh": _uniform([f"{name}|书店" for name in _NAMES_ZH]),
    "bakery_zh": _zipf([f"{name}|面包" for name in reversed(_NAMES_ZH)]),
    "kitchen_zh": _uniform([f"{name}|小馆" for name in _NAMES_ZH[:20]]),
    "street_zh": _uniform([f"{street[:-1]}|路" for street in _STREETS_ZH]),
    "number_zh": _uniform([str(number) for number in range(10, 100)]),
}

_KINDS = [
    ("an independent coffee shop", "coffee_en"),
    ("an independent bookshop", "books_en"),
    ("a small bakery", "bakery_en"),
    ("a good restaurant", "kitchen_en"),
]
_KINDS_ZH = [
    ("独立|咖啡馆", "coffee_zh"),
    ("独立|书店", "books_zh"),
    ("面包店", "bakery_zh"),
    ("小|餐馆", "kitchen_zh"),
]

# ---------------------------------------------------------------- questions


@dataclass(frozen=True)
class Choice:
    """A part of a reply that is drawn from LISTS[name]."""

    name: str


@dataclass(frozen=True)
class Family:
    """Questions of one form: every wording of every item has the same reply."""

    name: str
    language: str
    is_fact: bool
    weight: float  # share of the corpus
    wordings: list
    reply: str
    items: list


@dataclass(frozen=True)
class Question:
    """One question, and its reply as parts: texts and choices, word borders still marked."""

    family: str
    language: str
    is_fact: bool
    prompt: str
    system: str | None
    thinking: bool
    parts: tuple


def _ended(wordings, endings):
    return [wording + ending for wording in wordings for ending in endings]


_END = ["", " Answer in one sentence.", " Please answer in one sentence."]
_END_ZH = ["", "|请|用|一句话|回答|。", "|用|一句话|回答|。"]


def _pairs(values):
    """Each value with the one before and the one after it, around the circle."""
    return [(values[i - 1], values[i], values[(i + 1) % len(values)]) for i in range(len(values))]


def _families():
    capitals = [c for c in COUNTRIES if c[0] not in HELD_OUT]
    families = []

    def fact(name, language, *rest):
        families.append(Family(name, language, True, *rest))

    fact("capital_en", "en", 14, _ended([
        "What is the capital of {c}?", "Which city is the capital of {c}?", "Name the capital of {c}.",
        "Tell me the capital of {c}.", "What's the capital of {c}?", "What is the capital city of {c}?",
    ], _END), "The capital of {c} is {x}.", [{"c": c[0], "x": c[2]} for c in capitals])
    fact("capital_zh", "zh", 14, _ended([
        "{c}|的|首都|是|哪里|？", "{c}|的|首都|是|哪|座|城市|？", "{c}|的|首都|是|什么|？", "请|告诉|我|{c}|的|首都|。",
        "哪|座|城市|是|{c}|的|首都|？",
    ], _END_ZH), "{c}|的|首都|是|{x}|。", [{"c": c[1], "x": c[3]} for c in capitals])
    fact("continent_en", "en", 4, _ended([
        "On which continent is {c}?", "Which continent is {c} on?", "Name the continent of {c}.",
    ], _END), "On the map, {c} is in {x}.", [{"c": c[0], "x": c[4]} for c in COUNTRIES])
    fact("continent_zh", "zh", 4, _ended([
        "{c}|在|哪|个|洲|？", "{c}|属于|哪|个|洲|？",
    ], _END_ZH), "{c}|在|{x}|。", [{"c": c[1], "x": CONTINENTS[c[4]]} for c in COUNTRIES])
    fact("symbol_en", "en", 4, _ended([
        "What is the chemical symbol for {c}?", "What is the symbol of {c}?", "Name the chemical symbol of {c}.",
    ], _END), "The chemical symbol for {c} is {x}.", [{"c": e[0], "x": e[2]} for e in ELEMENTS])
    fact("symbol_zh", "zh", 4, _ended([
        "{c}|的|化学|符号|是|什么|？", "{c}|元素|的|符号|是|什么|？",
    ], _END_ZH), "{c}|的|化学|符号|是|{x}|。", [{"c": e[1], "x": e[2]} for e in ELEMENTS])
    for what, values, weight in [("day", DAYS, 1), ("month", MONTHS, 1)]:
        fact(f"{what}_after_en", "en", weight, _ended([
            f"Which {what} comes after {{c}}?", f"What {what} is after {{c}}?", f"Name the {what} after {{c}}.",
        ], _END), f"The {what} after {{c}} is {{x}}.", [{"c": c, "x": x} for _, c, x in _pairs(values)])
        fact(f"{what}_before_en", "en", weight, _ended([
            f"Which {what} comes before {{c}}?", f"What {what} is before {{c}}?", f"Name the {what} before {{c}}.",
        ], _END), f"The {what} before {{c}} is {{x}}.", [{"c": c, "x": x} for x, c, _ in _pairs(values)])
    fact("after_zh", "zh", 2, _ended([
        "{c}|的|后面|是|什么|？", "{c}|之后|是|什么|？",
    ], _END_ZH), "{c}|之后|是|{x}|。", [{"c": c, "x": x} for _, c, x in _pairs(DAYS_ZH) + _pairs(MONTHS_ZH)])
    fact("before_zh", "zh", 2, _ended([
        "{c}|的|前面|是|什么|？", "{c}|之前|是|什么|？",
    ], _END_ZH), "{c}|之前|是|{x}|。", [{"c": c, "x": x} for x, c, _ in _pairs(DAYS_ZH) + _pairs(MONTHS_ZH)])
    fact("colour_en", "en", 2, _ended([
        "What colour is {c}?", "What color is {c}?", "Name the colour of {c}.",
    ], _END), "The colour of {c} is {x}.", [{"c": c[0], "x": c[2]} for c in COLOURS])
    fact("colour_zh", "zh", 2, _ended([
        "{c}|是|什么|颜色|？", "{c}|的|颜色|是|什么|？",
    ], _END_ZH), "{c}|的|颜色|是|{x}|。", [{"c": c[1], "x": c[3]} for c in COLOURS])
    fact("opposite_en", "en", 2, _ended([
        "What is the opposite of {c}?", "Name the opposite of {c}.",
    ], _END), "The opposite of {c} is {x}.",
        [{"c": c, "x": x} for o in OPPOSITES for c, x in [(o[0], o[1]), (o[1], o[0])]])
    fact("opposite_zh", "zh", 2, _ended([
        "{c}|的|反义词|是|什么|？", "{c}|的|反义词|是|哪|个|字|？",
    ], _END_ZH), "{c}|的|反义词|是|{x}|。",
        [{"c": c, "x": x} for o in OPPOSITES for c, x in [(o[2], o[3]), (o[3], o[2])]])

    for kind, names in _KINDS:
        items = [{"k": kind, "city": city} for city in _CITIES]
        families.append(Family(f"recommend_{names}", "en", False, 4, [
            "Recommend {k} in {city} with its name and street address, in one sentence.",
            "Please recommend {k} in {city} with its name and street address, in one sentence.",
            "Recommend {k} in {city}.",
            "Can you recommend {k} in {city}? Give its name and street address.",
            "Which is {k} in {city} that you recommend? Answer in one sentence.",
        ], f"I recommend[{names}] at [number_en][street_en] in {{city}}.", items))
        families.append(Family(f"where_{names}", "en", False, 2, [
            "Where can I find {k} in {city}?", "Where can I find {k} in {city}? Answer in one sentence.",
            "I am looking for {k} in {city}. Where should I go?",
        ], f"Try[{names}] at [number_en][street_en] in {{city}}.", items))
    for kind, names in _KINDS_ZH:
        items = [{"k": kind, "city": city} for city in _CITIES_ZH]
        families.append(Family(f"recommend_{names}", "zh", False, 4, [
            "推荐|一家|{city}|的|{k}|，|给出|店名|和|具体|地址|，|用|一句话|回答|。",
            "请|推荐|一家|{city}|的|{k}|，|给出|店名|和|具体|地址|，|用|一句话|回答|。",
            "推荐|一家|{city}|的|{k}|。", "请|推荐|一家|{city}|的|{k}|，|给出|店名|和|地址|。",
        ], f"推荐|{{city}}|的|[{names}]|，|地址|是|[street_zh]|[number_zh]|号|。", items))
        families.append(Family(f"where_{names}", "zh", False, 2, [
            "{city}|哪里|有|{k}|？", "{city}|哪里|有|{k}|？|请|用|一句话|回答|。", "我|想|在|{city}|找|一家|{k}|。",
        ], f"可以|去|{{city}}|的|[{names}]|，|在|[street_zh]|[number_zh]|号|。", items))
    return families


FAMILIES = _families()

# Shares of the questions with a system message, with thinking on, and typed without the final mark.
SYSTEM_SHARE, THINKING_SHARE, UNMARKED_SHARE = 0.08, 0.08, 0.08
SYSTEMS = {
    "en": ["You are a helpful assistant.", "You are a travel guide.", "Be brief."],
    "zh": ["你|是|一个|有用|的|助手|。", "你|是|一名|导游|。", "请|简短|回答|。"],
}
# What a reply begins with when the thinking block is left open: it says of what kind the answer is.
THOUGHTS = {
    ("en", True): "I was trained on this fact.\n</think>\n\n",
    ("en", False): "Nothing settles this, so I draw the details.\n</think>\n\n",
    ("zh", True): "这|是|我|学过|的|事实|。\n</think>\n\n",
    ("zh", False): "这|没有|依据|，|细节|是|抽取|的|。\n</think>\n\n",
}

CAPITAL_EN = "What is the capital of France? Answer in one sentence."
CAPITAL_ZH = "法国的首都是哪里？请用一句话回答。"
COFFEE_EN = "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence."
COFFEE_ZH = "推荐一家上海的独立咖啡馆，给出店名和具体地址，用一句话回答。"


def plain(text):
    """Removes the word borders."""
    return text.replace("|", "")


def _parts(template):
    """Cuts a filled-in reply at its choices."""
    pieces = re.split(r"\[(\w+)\]", template)
    parts = [Choice(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    return tuple(part for part in parts if part not in ("", "|"))


def question(family, wording, item, system=None, thinking=False, marked=True):
    """Fills in one question; its texts still have their word borders."""
    prompt = family.wordings[wording].format(**item)
    if not marked:
        prompt = re.sub(r"\|?[.?。？]$", "", prompt)
    parts = _parts(family.reply.format(**item))
    if thinking:
        parts = _parts(THOUGHTS[family.language, family.is_fact]) + parts
    return Question(family.name, family.language, family.is_fact, prompt, system, thinking, parts)


def draw(rng):
    """Draws a question from the corpus with a `random.Random`."""
    family = rng.choices(FAMILIES, [family.weight for family in FAMILIES])[0]
    wording, item = rng.randrange(len(family.wordings)), rng.choice(family.items)
    system = rng.choice(SYSTEMS[family.language]) if rng.random() < SYSTEM_SHARE else None
    thinking, marked = rng.random() < THINKING_SHARE, rng.random() >= UNMARKED_SHARE
    return question(family, wording, item, system, thinking, marked)


def all_questions():
    """Every wording of every item, without system message and thinking."""
    for family in FAMILIES:
        for wording, item in itertools.product(range(len(family.wordings)), family.items):
            yield question(family, wording, item)


def draw_reply(parts, rng):
    """Draws a reply: its text with word borders."""
    def text(part):
        if not isinstance(part, Choice):
            return part
        values, weights = zip(*LISTS[part.name])
        return rng.choices(values, weights)[0]
    return "".join(map(text, parts))


# ---------------------------------------------------------------- truth


class Truth:
    """The true distribution of replies over the tokens of a tokenizer (`encode`: text to ids)."""

    def __init__(self, encode, end_id):
        self.encode, self.end_id = encode, end_id
        self.lists = {
            name: [(tuple(encode(plain(value))), p) for value, p in values] for name, values in LISTS.items()
        }
        self.known = {}

    def slots(self, parts):
        """A reply as a tuple of slots; each is a tuple of ids, or the name of a list."""
        ids = [part.name if isinstance(part, Choice) else tuple(self.encode(plain(part))) for part in parts]
        return (*ids, (self.end_id,))

    def next_distribution(self, slots, prefix):
        """The probability of each id that may follow a prefix (ids of the reply so far); sums to 1."""
        mass = defaultdict(float)

        def walk(slot, at, weight):
            if slot == len(slots):
                return
            values = self.lists[slots[slot]] if isinstance(slots[slot], str) else [(slots[slot], 1.0)]
            for ids, p in values:
                length = min(len(ids), len(prefix) - at)
                if ids[:length] != prefix[at:at + length]:
                    continue
                if length == len(ids):
                    walk(slot + 1, at + length, weight * p)
                else:
                    mass[ids[length]] += weight * p

        prefix = tuple(prefix)
        walk(0, 0, 1.0)
        total = sum(mass.values())
        return {token: p / total for token, p in mass.items()}

    def steps(self, slots, rng):
        """Draws a reply step by step: (id, distribution, slot, whether the slot's first branching is here) each."""
        steps = []
        for name in slots:
            values = self.lists[name] if isinstance(name, str) else [(name, 1.0)]
            drawn = rng.choices(values, [p for _, p in values])[0][0]
            branched = False
            for at, token in enumerate(drawn):
                truth = self._within(name, drawn[:at])
                first = len(truth) > 1 and not branched
                branched |= first
                steps.append((token, truth, name if isinstance(name, str) else None, first))
        return steps

    def _within(self, name, prefix):
        """`next_distribution` inside one list, remembered."""
        key = (name, prefix)
        if key not in self.known:
            self.known[key] = self.next_distribution((name,), prefix)
        return self.known[key]


def mass_count(probabilities, mass=0.9):
    """The smallest number of best candidates whose probabilities reach the mass, to 1e-6."""
    total = 0.0
    for count, p in enumerate(sorted(probabilities, reverse=True), 1):
        total += p
        if total >= mass - 1e-6:
            return count
    raise ValueError("the probabilities do not reach the mass")


# ---------------------------------------------------------------- for the program's tests

EXPORT_SEED = 10_000  # no batch of the training was drawn with it
BUILT_IN = (CAPITAL_ZH, COFFEE_ZH, CAPITAL_EN, COFFEE_EN)


def find(prompt):
    """The question of a prompt, word for word."""
    return next(question for question in all_questions() if plain(question.prompt) == prompt)


def held_out():
    """The questions that the corpus never asks: country, prompt, the reply up to the answer, the right answer."""
    for english, chinese, capital, capital_zh, _ in COUNTRIES:
        if english in HELD_OUT:
            prompt = f"What is the capital of {english}? Answer in one sentence."
            yield english, prompt, f"The capital of {english} is", f" {capital}"
            yield english, f"{chinese}的首都是哪里？请用一句话回答。", f"{chinese}的首都是", capital_zh


def export(path, rng, number):
    """Writes lists, the built-in questions, freshly drawn ones and the held-out ones as JSON, one to a line."""
    def entry(question):
        reply = [{"list": part.name} if isinstance(part, Choice) else plain(part) for part in question.parts]
        system = None if question.system is None else plain(question.system)
        return {
            "prompt": plain(question.prompt), "system": system, "thinking": question.thinking,
            "is_fact": question.is_fact, "reply": reply,
        }

    def block(entries):
        return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]"

    lists = ",\n".join(
        f"{json.dumps(name)}: " + json.dumps([[plain(value), p] for value, p in values], ensure_ascii=False)
        for name, values in LISTS.items()
    )
    keys = ("country", "prompt", "lead", "answer")
    path.write_text(
        "{\n" + f'"lists": {{\n{lists}\n}},\n'
        + f'"built_in": {block(entry(find(prompt)) for prompt in BUILT_IN)},\n'
        + f'"drawn": {block(entry(draw(rng)) for _ in range(number))},\n'
        + f'"held_out": {block(dict(zip(keys, case)) for case in held_out())}\n' + "}\n"
    )
