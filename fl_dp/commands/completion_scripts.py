"""Completion scripts of the shells, made of all words: nothing is looked up at a press of TAB."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Words: TypeAlias = Mapping[str, Sequence[str]]

_HEAD = "# Completion of fl-dp, written by `fl-dp completion {shell}`.\n"

_BASH = """\
_fl_dp_words() {{
    case "$1" in
{commands}
    esac
}}

_fl_dp_values() {{
    case "$1" in
{values}
    esac
}}

_fl_dp() {{
    local -a parts=()
    local word last i path="" current key head
    # Bash splits at "=": put KEY, = and VALUE together again.
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        if ((${{#parts[@]}})) && [[ $word == "="* || $last == *"=" ]]; then
            parts[${{#parts[@]}}-1]+="$word"
        else
            parts+=("$word")
        fi
        last="$word"
    done
    current="${{parts[${{#parts[@]}}-1]}}"
    for ((i = 0; i + 1 < ${{#parts[@]}}; i++)); do
        if [[ -n $(_fl_dp_words "${{path:+$path }}${{parts[i]}}") ]]; then
            path="${{path:+$path }}${{parts[i]}}"
        fi
    done
    COMPREPLY=()
    if [[ $current == *"="* ]]; then
        key="${{current%%=*}}" current="${{current#*=}}" head=""
        # Without "=" among the characters that break words, the key is a part of the word.
        [[ $COMP_WORDBREAKS == *"="* ]] || head="$key="
        # A sweep has several values: the last one is completed.
        [[ $current == *,* ]] && head+="${{current%,*}}," && current="${{current##*,}}"
        COMPREPLY=($(compgen -P "$head" -W "$(_fl_dp_values "$key")" -- "$current"))
        return
    fi
    COMPREPLY=($(compgen -W "$(_fl_dp_words "$path")" -- "$current"))
    if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}}

# Where nothing of ours fits, names of files.
complete -o default -F _fl_dp fl-dp
"""

_ZSH = """\
#compdef fl-dp
{head}
_fl_dp_words() {{
    case "$1" in
{commands}
    esac
}}

_fl_dp_values() {{
    case "$1" in
{values}
    esac
}}

_fl_dp() {{
    local command_path="" current="${{words[CURRENT]}}" one
    for one in "${{(@)words[2,CURRENT-1]}}"; do
        if [[ -n "$(_fl_dp_words "${{command_path:+$command_path }}$one")" ]]; then
            command_path="${{command_path:+$command_path }}$one"
        fi
    done
    if [[ "$current" == *"="* ]]; then
        local -a values
        values=(${{=$(_fl_dp_values "${{current%%=*}}")}})
        # What is left of the last value of a sweep is completed.
        compset -P '*[=,]'
        compadd -- "${{values[@]}}" || _files
        return
    fi
    local -a found keys others
    found=(${{=$(_fl_dp_words "$command_path")}})
    keys=("${{(@M)found:#*=}}")
    others=("${{(@)found:#*=}}")
    compadd -S '' -- "${{keys[@]}}"
    compadd -- "${{others[@]}}"
    _files
}}

if [[ "${{funcstack[1]}}" == "_fl_dp" || "${{funcstack[1]}}" == "_fl-dp" ]]; then
    _fl_dp "$@"
else
    compdef _fl_dp fl-dp
fi
"""

_FISH = """\
function __fl_dp_words
    switch "$argv"
{commands}
    end
end

function __fl_dp_values
    switch "$argv[1]"
{values}
    end
end

function __fl_dp
    set -l path
    for one in (commandline -opc)[2..-1]
        if test -n "$(__fl_dp_words $path $one)"
            set path $path $one
        end
    end
    set -l current (commandline -ct)
    if string match -q '*=*' -- $current
        set -l key (string split -m 1 = -- $current)[1]
        # What is left of the last value of a sweep is completed.
        set -l head (string match -r '^.*[=,]' -- $current)
        for value in (__fl_dp_values $key)
            echo "$head$value"
        end
    else
        __fl_dp_words $path
    end
end

complete -c fl-dp -a '(__fl_dp)'
"""


def bash(words: Words, values: Words) -> str:
    """Return bash's script.

    Args:
        words: Those that may follow each command, by the command's own words.
        values: Those that each key may have.
    """
    return _HEAD.format(shell="bash") + _BASH.format(
        commands=_cases(words, _posix), values=_cases(values, _posix)
    )


def zsh(words: Words, values: Words) -> str:
    """Return zsh's script; otherwise as `bash`."""
    return _ZSH.format(
        head=_HEAD.format(shell="zsh"),
        commands=_cases(words, _posix),
        values=_cases(values, _posix),
    )


def fish(words: Words, values: Words) -> str:
    """Return fish's script; otherwise as `bash`."""
    return _HEAD.format(shell="fish") + _FISH.format(
        commands=_cases(words, _fish), values=_cases(values, _fish)
    )


SCRIPTS: dict[str, Callable[[Words, Words], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""What writes the script of each shell."""


def _cases(words: Words, case: Callable[[str, Sequence[str]], str]) -> str:
    return "\n".join(case(of, each) for of, each in words.items() if each)


def _posix(of: str, words: Sequence[str]) -> str:
    return f"        {_quoted(of)}) echo {_quoted(' '.join(words))} ;;"


def _fish(of: str, words: Sequence[str]) -> str:
    listed = " ".join(_quoted(word) for word in words)
    return f"        case {_quoted(of)}\n            printf '%s\\n' {listed}"


def _quoted(text: str) -> str:
    return f"'{text}'" if shlex.quote(text) == text else shlex.quote(text)
