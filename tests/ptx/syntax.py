"""PTX text -> `Module`: functions with declarations, labels and instructions, module variables with initial values.

Only the grammar lives here. Names are not resolved and opcodes are not known: a statement that starts with a word
is an instruction, whatever the word. Nested `{ }` stay nested, because each opens a scope of names.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache

from tests.ptx.errors import PtxSyntaxError

# ---------------------------------------------------------------- operands


@dataclass(frozen=True)
class Name:
    """A register, special register, variable, label or function, by name."""

    name: str
    offset: int = 0  # `name + 16`, for variables


@dataclass(frozen=True)
class Int:
    """An integer literal."""

    value: int


@dataclass(frozen=True)
class Float:
    """A floating-point literal by its bits, 32 or 64 of them; a decimal one is of 64."""

    bits: int
    width: int


@dataclass(frozen=True)
class Group:
    """`{a, b}` (a vector) or `(a, b)` (arguments of a call)."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """`[base + offset]`, and what stands behind a comma: `[map, {x, y}]`."""

    base: Name | Int
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Pair:
    """`a|b`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Not:
    """`!p`: a negated predicate."""

    operand: Operand


Operand = Name | Int | Float | Group | Address | Pair | Not

# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode.mods operands;`"""

    opcode: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Name | Not | None
    line: int
    text: str


@dataclass(frozen=True)
class Label:
    name: str
    line: int


@dataclass(frozen=True)
class Declaration:
    """`.space .align n .type name[count] = {init}`; a register range `%r<10>` declares `%r0` to `%r9`.

    `count` is the number of elements, None for `name[]`. `init` holds numbers, `Float`s and `Name`s (addresses).
    """

    space: str
    type: str
    name: str
    align: int
    count: int | None
    init: tuple[Operand, ...]
    line: int
    span: int | None = None  # of a register range
    extern: bool = False


@dataclass(frozen=True)
class Targets:
    """`label: .branchtargets a, b;`"""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """`{ ... }`: a scope of names."""

    items: tuple[Statement, ...]


Statement = Instruction | Label | Declaration | Targets | Body


@dataclass(frozen=True)
class Function:
    """`.entry` or `.func`. `body` is None for a declaration."""

    name: str
    is_entry: bool
    results: tuple[Declaration, ...]
    params: tuple[Declaration, ...]
    body: Body | None
    line: int
    directives: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Module:
    target: str
    variables: tuple[Declaration, ...]
    functions: dict[str, Function]


# ---------------------------------------------------------------- tokens


@dataclass(frozen=True)
class Token:
    kind: str  # "word", "directive", "number", "string", "end" or the sign itself
    text: str
    line: int
    start: int
    end: int


TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>0[fF][0-9a-fA-F]{8}(?![\w])|0[dD][0-9a-fA-F]{16}(?![\w])
                 |0[xX][0-9a-fA-F]+U?|0[bB][01]+U?(?![\w])
                 |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?(?![\w]))
      | (?P<word>[%$A-Za-z_][\w$]*(?:(?:\.|::)[\w$]+)*)
      | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)?)
      | (?P<string>"[^"]*")
      | (?P<sign>[{}\[\]()<>,;:|!=+\-@~*])
    """,
    re.VERBOSE,
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DEBUG_LINE = re.compile(r"^[ \t]*\.(?:loc|file)\b[^\n]*", re.MULTILINE)
DEBUG_SECTION = re.compile(r"^[ \t]*\.section\b[^{]*\{[^}]*\}", re.MULTILINE)


def blank(match: re.Match[str]) -> str:
    """Spaces and line ends as long as the match, so that positions and lines stay true."""
    return re.sub(r"[^\n]", " ", match.group())


def tokens_of(text: str) -> list[Token]:
    for pattern in (COMMENT, DEBUG_LINE, DEBUG_SECTION):
        text = pattern.sub(blank, text)
    found: list[Token] = []
    position, line = 0, 1
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise PtxSyntaxError(f"line {line}: cannot read {text[position:position + 20]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(Token(match.group() if kind == "sign" else kind, match.group(), line, *match.span()))
        line += match.group().count("\n")
        position = match.end()
    found.append(Token("end", "", line, len(text), len(text)))
    return found


def parse_float(text: str) -> Float:
    if text[:2].lower() == "0f":
        return Float(int(text[2:], 16), 32)
    return Float(int(text[2:], 16), 64)


def parse_int(text: str) -> int:
    text = text.rstrip("U")
    if text[:2].lower() in ("0x", "0b"):
        return int(text, 0)
    return int(text, 8) if len(text) > 1 and text[0] == "0" else int(text)


SPACES = {".reg", ".local", ".shared", ".param", ".const", ".global"}
LINKING = {".visible", ".extern", ".weak", ".common"}
FUNCTION_DIRECTIVES = {
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".pragma",
    ".explicitcluster", ".reqnctapercluster", ".maxclusterrank", ".blocksareclusters", ".abi_preserve",
}  # fmt: skip


class Parser:
    """Recursive descent over the tokens of one module."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens_of(text)
        self.at = 0

    # -- tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def advance(self) -> Token:
        token = self.token
        self.at += 1
        return token

    def accept(self, *kinds_or_texts: str) -> Token | None:
        token = self.token
        if token.kind in kinds_or_texts or (token.kind == "directive" and token.text in kinds_or_texts):
            return self.advance()
        return None

    def expect(self, *kinds_or_texts: str) -> Token:
        token = self.accept(*kinds_or_texts)
        if token is None:
            raise self.wrong(" or ".join(kinds_or_texts))
        return token

    def wrong(self, wanted: str) -> PtxSyntaxError:
        line = self.text.splitlines()[self.token.line - 1].strip() if self.token.text else "end of text"
        return PtxSyntaxError(f"line {self.token.line}: wanted {wanted}, found {self.token.text!r} in: {line}")

    # -- module

    def module(self) -> Module:
        target = ""
        variables: list[Declaration] = []
        functions: dict[str, Function] = {}
        while not self.accept("end"):
            if self.accept(".version", ".address_size"):
                self.expect("number")
            elif self.accept(".target"):
                target = self.expect("word").text
                while self.accept(","):
                    self.expect("word")
            elif self.accept(";"):
                continue
            else:
                self.module_item(variables, functions)
        return Module(target, tuple(variables), functions)

    def module_item(self, variables: list[Declaration], functions: dict[str, Function]) -> None:
        extern = False
        while linking := self.accept(*LINKING):
            extern |= linking.text == ".extern"
        if self.token.text in (".entry", ".func"):
            function = self.function()
            if function.body is not None or function.name not in functions:
                functions[function.name] = function
        elif self.token.text in SPACES:
            variables.extend(self.declaration(extern))
        else:
            raise self.wrong("a function or a variable")

    def function(self) -> Function:
        start = self.advance()
        is_entry = start.text == ".entry"
        while self.accept(".attribute"):
            self.skip_parentheses()
        results: tuple[Declaration, ...] = ()
        if self.token.kind == "(" and not is_entry:
            results = self.parameters()
        name = self.expect("word").text
        params = self.parameters() if self.token.kind == "(" else ()
        directives = []
        while directive := self.accept(*FUNCTION_DIRECTIVES):
            directives.append((directive.text, self.numbers()))
        body = self.body() if self.token.kind == "{" else None
        if body is None:
            self.expect(";")
        return Function(name, is_entry, results, params, body, start.line, tuple(directives))

    def skip_parentheses(self) -> None:
        self.expect("(")
        while not self.accept(")"):
            self.advance()

    def numbers(self) -> tuple[int, ...]:
        found = []
        while token := self.accept("number", "string"):
            found.append(parse_int(token.text) if token.kind == "number" else 0)
            self.accept(",")
        return tuple(found)

    def parameters(self) -> tuple[Declaration, ...]:
        self.expect("(")
        found: list[Declaration] = []
        while not self.accept(")"):
            found.extend(self.declaration(False, ends=False))
            self.accept(",")
        return tuple(found)

    # -- declarations

    def declaration(self, extern: bool, ends: bool = True) -> list[Declaration]:
        start = self.advance()
        space, align, vector, dtype = start.text[1:], 0, 1, ""
        while directive := self.accept("directive"):
            word = directive.text[1:]
            if word == "align":
                align = parse_int(self.expect("number").text)
            elif word in ("v2", "v4"):
                vector = int(word[1])
            elif word == "attribute":
                self.skip_parentheses()
            elif word == "ptr":
                self.accept(".global", ".shared", ".const", ".local")
            else:
                dtype = word
        found = [self.declarator(space, dtype, align, vector, extern, start.line)]
        while ends and self.accept(","):
            found.append(self.declarator(space, dtype, align, vector, extern, start.line))
        if ends:
            self.expect(";")
        return found

    def declarator(self, space: str, dtype: str, align: int, vector: int, extern: bool, line: int) -> Declaration:
        name = self.expect("word").text
        span: int | None = None
        count: int | None = vector
        if self.accept("<"):
            span = parse_int(self.expect("number").text)
            self.expect(">")
        while self.accept("["):
            size = self.accept("number")
            count = None if size is None or count is None else count * parse_int(size.text)
            self.expect("]")
        init = self.initialiser() if self.accept("=") else ()
        return Declaration(space, dtype, name, align, count, init, line, span, extern)

    def initialiser(self) -> tuple[Operand, ...]:
        if not self.accept("{"):
            return (self.initial_value(),)
        found: list[Operand] = []
        while not self.accept("}"):
            found.extend(self.initialiser() if self.token.kind == "{" else (self.initial_value(),))
            self.accept(",")
        return tuple(found)

    def initial_value(self) -> Operand:
        if self.token.text == "generic":
            self.advance()
            self.expect("(")
            value = self.operand()
            self.expect(")")
            if isinstance(value, Name) and self.accept("+"):
                value = Name(value.name, parse_int(self.expect("number").text))
            return value
        return self.operand()

    # -- bodies

    def body(self) -> Body:
        self.expect("{")
        items: list[Statement] = []
        while not self.accept("}"):
            items.extend(self.statement())
        return Body(tuple(items))

    def statement(self) -> list[Statement]:
        token = self.token
        if token.kind == "{":
            return [self.body()]
        if token.text in SPACES:
            return list(self.declaration(False))
        if token.text in LINKING:
            self.advance()
            return list(self.declaration(token.text == ".extern"))
        if self.accept(".pragma"):
            self.skip_statement()
            return []
        if self.accept(";"):
            return []
        if token.kind == "word" and self.tokens[self.at + 1].kind == ":":
            return [self.label()]
        return [self.instruction()]

    def skip_statement(self) -> None:
        while not self.accept(";"):
            self.advance()

    def label(self) -> Statement:
        token = self.advance()
        self.expect(":")
        if self.accept(".branchtargets"):
            names = [self.expect("word").text]
            while self.accept(","):
                names.append(self.expect("word").text)
            self.expect(";")
            return Targets(token.text, tuple(names))
        if self.accept(".callprototype"):
            self.skip_statement()
        return Label(token.text, token.line)

    def instruction(self) -> Instruction:
        start = self.token
        guard: Name | Not | None = None
        if self.accept("@"):
            negated = self.accept("!") is not None
            name = Name(self.expect("word").text)
            guard = Not(name) if negated else name
        opcode, *mods = self.expect("word").text.split(".")
        operands: list[Operand] = []
        while self.token.kind != ";":
            operands.append(self.operand())
            if not self.accept(","):
                break
        end = self.expect(";")
        text = " ".join(self.text[start.start:end.start].split())
        return Instruction(opcode, tuple(mods), tuple(operands), guard, start.line, text)

    # -- operands

    def operand(self) -> Operand:
        first = self.simple_operand()
        return Pair(first, self.simple_operand()) if self.accept("|") else first

    def simple_operand(self) -> Operand:
        if self.accept("{"):
            return self.group("}")
        if self.accept("("):
            return self.group(")")
        if self.accept("["):
            return self.address()
        if self.accept("!"):
            return Not(self.simple_operand())
        if self.token.kind == "word":
            name = self.advance().text
            return Name(name, self.offset())
        return self.literal()

    def literal(self) -> Operand:
        negative = self.accept("-") is not None
        text = self.expect("number").text
        if text[:2].lower() in ("0f", "0d") and len(text) in (10, 18):
            value = parse_float(text)
            return Float(value.bits ^ (1 << (value.width - 1)), value.width) if negative else value
        if "." in text or ("e" in text.lower() and text[:2].lower() != "0x"):
            return Float(int.from_bytes(struct.pack("<d", -float(text) if negative else float(text)), "little"), 64)
        return Int(-parse_int(text) if negative else parse_int(text))

    def offset(self) -> int:
        total = 0
        while sign := self.accept("+", "-"):
            negative = (sign.kind == "-") != (self.accept("-") is not None)
            value = parse_int(self.expect("number").text)
            total += -value if negative else value
        return total

    def group(self, end: str) -> Group:
        items: list[Operand] = []
        while not self.accept(end):
            items.append(self.operand())
            self.accept(",")
        return Group(tuple(items))

    def address(self) -> Address:
        base: Name | Int
        if token := self.accept("word"):
            base = Name(token.text)
        else:
            base = Int(parse_int(self.expect("number").text))
        offset = self.offset()
        extra: list[Operand] = []
        while self.accept(","):
            extra.append(self.operand())
        self.expect("]")
        return Address(base, offset, tuple(extra))


@lru_cache(maxsize=64)
def parse_module(text: str) -> Module:
    """The module of a PTX text. Raises PtxSyntaxError with line and found token."""
    return Parser(text).module()
