#!/usr/bin/env python3
"""Writes cases.json beside this file: what Jinja 3.1.6, set up as transformers sets it up for chat templates, makes of
small templates. Needs jinja2 (PyPI). Run: python3 make_cases.py"""
import json
import os

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "s": "Hello World", "u": "Grüße, 日本 😀 ſtraße", "e": "", "n": 7, "f": 2.5, "z": 0, "t": True, "nil": None,
    "l": [3, 1, 2], "words": ["pear", "Apple", "fig"], "d": {"b": 1, "a": [1, {"x": "y"}], "items": "own"},
    "people": [{"name": "Ann", "age": 30, "pet": {"kind": "cat"}}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 30}],
    "space": " \t x y \n", "lines": "a\n\nb\r\nc", "q": "it's \"q\" \\ \n\x07é", "tags": "<think>\nwhy\n</think>\n\nso",
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                 {"role": "assistant", "content": "A", "tool_calls": [{"function": {"name": "g", "arguments": {"k": 1.0}}}]}],
}

OUTPUT = """
s
s ~ 1 ~ none ~ true ~ 1.5 ~ undefined_name
n + 1
n - 10
n * f
n / 2
7 // 2
-7 // 2
-7 % 3
7 % -3
2 ** 10
2 ** -1
1 + 2 * 3 - 4
(1 + 2) * 3
-n
+n
- n | abs
1e3
1.5e-7
1e16
1e15
123456789.125
0.1 + 0.2
1_000
"a" "b" 'c'
'x' * 3
3 * 'ab'
[1, 2] + [3]
(1, 2) + (3,)
(1,)
()
[]
{}
{'a': 1, 2: 'b'}
[1, 'a', none, true, 1.0, [2], {'k': 'v'}]
l
words
d
q
[q]
['it"s', "it's"]
u
u | length
s | length
l | length
d | length
undefined_name | length
s[0]
s[-1]
u[8]
s[1:4]
s[::-1]
u[::-1]
s[:-3]
s[-3:]
s[100:]
s[5:2]
l[1:]
l[::-1]
l[::2]
l[-2:]
l[0]
l[-1]
l[5] is defined
d['a']
d.a
d['a'][1].x
d.a.1.x
d.items is callable
d['items']
d.missing is defined
d.missing
d.get('b')
d.get('nope')
d.get('nope', 5)
d.keys() | list
d.values() | list
d.items() | list
1 < 2
1 < 2 < 3
1 < 3 < 2
1 == 1.0
true == 1
'a' < 'b'
[1, 2] < [1, 3]
'a' == 1
none == none
undefined_name == other_undefined
l == [3, 1, 2]
(1, 2) == [1, 2]
1 != 2
1 >= 1
'ell' in s
'x' not in s
3 in l
9 in l
'b' in d
'zz' in d
'x' in undefined_name
not true
not not e
true and 'x'
'' and 'x'
'' or 'y'
0 or none
n and s or f
1 if true else 2
1 if false else 2
1 if false
'a' if false else 'b' if false else 'c'
s is string
n is string
n is number
t is number
t is integer
n is integer
f is float
d is mapping
l is mapping
l is iterable
n is iterable
s is sequence
l is sequence
d is sequence
n is sequence
undefined_name is iterable
nil is none
nil is not none
nil is defined
undefined_name is undefined
t is true
t is boolean
1 is true
false is false
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is ne 7
n is gt 3
n is lt(3)
n is in [1, 7]
'abc' is lower
'ABC' is upper
'Abc' is upper
range is callable
none is sameas none
s | upper
s | lower
u | upper
u | lower
'hELLO wORLD' | capitalize
"they're bill's" | title
s | replace('l', 'L')
s | replace('l', 'L', 1)
'abc' | replace('', '-')
space | trim
'xxaxx' | trim('x')
l | first
l | last
[] | first is defined
s | first
l | sort
l | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
people | sort(attribute='age') | map(attribute='name') | join(',')
people | sort(attribute='age', reverse=true) | map(attribute='name') | join(',')
people | map(attribute='pet.kind', default='-') | list
people | map(attribute='name') | map('upper') | list
people | selectattr('age', 'eq', 30) | map(attribute='name') | list
people | selectattr('pet') | map(attribute='name') | list
people | rejectattr('pet') | map(attribute='name') | list
people | selectattr('pet', 'defined') | list | length
l | select('odd') | list
l | reject('gt', 2) | list
[0, 1, '', 'a', none] | select | list
l | join
l | join(', ')
words | join('-')
people | join(',', attribute='name')
l | sum
people | sum(attribute='age')
l | min
l | max
words | min
words | max
l | reverse | list
s | reverse
s | list
d | list
d | dictsort
{'b': 1, 'A': 2} | dictsort
{'b': 1, 'A': 2} | dictsort(true)
{'b': 1, 'A': 2} | dictsort(by='value', reverse=true)
d | items | list
undefined_name | items | list
['a', 'B', 'A', 'b'] | unique | list
people | groupby('age') | list | length
undefined_name | default('x')
'' | default('x')
'' | default('x', true)
none | default('x')
nil | d('x', true)
'42' | int
'4.7' | int
'x' | int
'x' | int(-1)
3.9 | int
'1.5' | float
7 | float
2.567 | round(2)
2.5 | round
3.5 | round
2.1 | round(method='ceil')
-3 | abs
7 | string
1.0 | string
true | string
l | string
'a b  c' | wordcount
lines | indent(2)
'a\\nb' | indent(2, true)
'a\\n\\nb' | indent(2, blank=true)
d | tojson
q | tojson
u | tojson
u | tojson(ensure_ascii=true)
[1.0, 1e20, none, true, 'a/b', 0.1] | tojson
{'b': [1, {}], 'a': []} | tojson(indent=2)
{'b': 1, 'a': 2} | tojson(sort_keys=true)
[1, 2] | tojson(separators=(',', ':'))
{'k': [1, 2]} | tojson(indent=2, separators=(',', ':'))
messages | tojson
s | safe
s.upper()
s.lower()
s.title()
s.split()
s.split('o')
s.split('o', 1)
s.rsplit('o', 1)
' a  b '.split()
' a  b c'.split(none, 1)
'a,b,,c'.split(',')
tags.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')
tags.split('</think>')[-1].lstrip('\\n')
lines.splitlines()
lines.splitlines(true)
s.startswith('Hell')
s.startswith(('x', 'H'))
s.endswith('d')
space.strip()
space.lstrip()
space.rstrip()
'xyaxy'.strip('xy')
s.replace('o', '0')
s.replace('o', '0', 1)
s.find('o')
s.rfind('o')
s.find('zz')
u.find('日')
s.count('l')
s.index('W')
', '.join(words)
'12'.isdigit()
'a1'.isalnum()
'ab'.isalpha()
' '.isspace()
'AB'.isupper()
'pre-x'.removeprefix('pre-')
'x.txt'.removesuffix('.txt')
'7'.zfill(3)
'-7'.zfill(4)
'a'.ljust(3) ~ '|'
'a'.rjust(3)
l.index(2)
l.count(1)
range(3) | list
range(1, 10, 3) | list
range(5, 0, -2) | list
dict(a=1, b='x')
namespace(a=1).a
messages[0]['role']
messages[-1].tool_calls[0].function.arguments | tojson
messages | selectattr('role', 'equalto', 'user') | list
messages | map(attribute='role') | join('|')
(messages | last).content
'%c' ~ 1
"a\\tb\\x41\\u00e9\\d"
'a' ~ 'b' + 'c'
1 ~ 2 + 3
not 1 == 2
not 'x' in s
n in [7] and s
-2 ** 2
1, 2
[1, 2,]
{'a': {'b': {'c': 1}}}.a.b.c
s|upper|lower|length + 1
(s | length) > 5 and n is odd
'a' in 'abc' in ['abc', true]
undefined_name ~ 'x'
s.nothing is defined
l.nothing is defined
loop is defined
"\\'" ~ '\\"'
l | tojson | length
[l, words] | map('first') | list
[[1, 2], [3]] | sum(start=[])
5 | default(none)
'😀' | length
'ab'[1]
'é' | tojson
'ß' | upper
'a\\u2028b'.splitlines()
" \\u00a0x\\u3000".strip()
"\\u200bx".strip() | length
"""

WHOLE = [
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}",
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}no{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for c in 'aé日' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for x in undefined_name %}x{% endfor %}|",
    "{% for x in l %}{% for y in words %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = y %}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set ns = namespace(x=0, s='') %}{% for y in l %}{% set ns.x = ns.x + y %}{% set ns.s = ns.s ~ y %}{% endfor %}{{ ns.x }}{{ ns.s }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x | length }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}",
    "{% macro m(a, b=2, c=a) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=5) }}{{ m(a=3, b=4) }}{{ m() }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}",
    "{% macro fact(k) %}{% if k < 2 %}1{% else %}{{ k }}*{{ fact(k - 1) }}{% endif %}{% endmacro %}{{ fact(4) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{{ n }}{% endcall %}",
    "{% macro m() %}[{{ caller('x') }}]{% endmacro %}{% call(v) m() %}in{{ v }}{% endcall %}",
    "{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}{{ y is defined }}",
    "{% set y = 1 %}{% macro m() %}{% set y = 2 %}{{ y }}{% endmacro %}{{ m() }}{{ y }}",
    "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aXa{% endfilter %}",
    "{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}|",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc",
    "a\n  {%- if true %}\n  b\n  {%- endif -%}\nc",
    "a\n  {%+ if true %}\n  b{% endif +%}\nc",
    "  {# comment #}\nx{# a -#}  y",
    "a {#- b -#} c",
    "a\n\n{{- n -}}\n\nb",
    "{{ n }}\n{{ n }}\n",
    "x\n",
    "x\n\n",
    "a\r\nb\rc",
    "{% if true %}\n\n{% endif %}\n\nx",
    "  {% set x = 1 %}\n  {{ x }}",
    "{%if n%}{{n}}{%endif%}",
    "{{ '}}' }}{{ '{%' }}{{ {'a': 1}['a'] }}",
    "{{ {'a': {'b': 2}} }}",
    "a { b } c {d}} %} #}",
    "{{ 'multi\nline' }}",
    "{%- for m in messages -%}{{ '<|' ~ m.role ~ '|>' ~ (m['content'] | trim) }}{%- if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}\n{%- endfor %}",
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ rest | length }}",
    "{% if tools is defined and tools %}t{% else %}no{% endif %}",
    "{% if not loop_messages %}{% set loop_messages = messages %}{% endif %}{{ loop_messages | length }}",
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ loop.index0 }}{% endif %}{% endfor %}",
    "{% for m in messages[::-1] %}{% set index = (messages | length - 1) - loop.index0 %}{{ index }}{{ m.role }}{% endfor %}",
    "{% generation %}g{% endgeneration %}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% for x in l %}{% set y = x %}{% if y is defined %}{{ y }}{% endif %}{% endfor %}{{ y is defined }}",
    "{% for x in l %}{{ y is defined }}{% set y = x %}{% endfor %}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{{ [1, 2] | map('string') | map('upper') | join('+') }}",
    "{% set x = [] %}{% for i in range(3) %}{% set x = x + [i] %}{% endfor %}{{ x }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}",
    # errors
    "{{ undefined_name.x }}", "{{ undefined_name + 1 }}", "{{ none + 1 }}", "{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{{ 1 < 'a' }}",
    "{{ raise_exception('no') }}", "{{ d.missing.deeper }}", "{{ undefined_name() }}", "{{ n() }}", "{{ l.append(1) }}",
    "{{ 'a' in 1 }}", "{% for x in 5 %}{% endfor %}", "{{ 1 | tojson(2, 3, 4, 5, 6) }}", "{{ undefined_name | tojson }}",
    "{% if %}{% endif %}", "{% if true %}", "{{ 1 + }}", "{% endif %}", "{{ 'a }}", "{{ (1 }}", "{{ 1 }", "{% nothing %}",
    "{{ x | nofilter }}", "{{ x is notest }}", "{% for x %}{% endfor %}", "{% set %}", "{{ [1, 2 }}", "{# open",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{% set a, b = 1, 2, 3 %}",
    "{% set n.x = 1 %}", "{{ 'abc'[::0] }}", "{% break %}", "{{ {}['a']['b'] }}", "{{ range(1000000) | length }}",
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def main():
    env = environment()
    cases = []
    for source in ["{{ " + line.replace("\\\\", "\\") + " }}" for line in OUTPUT.strip().split("\n")] + WHOLE:
        case = {"template": source}
        try:
            case["output"] = env.from_string(source).render(**CONTEXT)
        except Exception as error:
            case["error"] = type(error).__name__
        cases.append(case)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.json"), "w", encoding="utf-8") as file:
        json.dump({"context": CONTEXT, "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")
    print(len(cases), "cases,", sum("error" in c for c in cases), "errors")


main()
