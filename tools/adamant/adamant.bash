# SPDX-License-Identifier: Apache-2.0
# Completion of adamant's command line in bash. The program itself computes the candidates.
_adamant() {
    mapfile -t COMPREPLY < <("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${COMPREPLY[0]-} == "<file>" ]]; then
        COMPREPLY=()
        compopt -o default # the shell's own: file names
    fi
}
complete -F _adamant adamant
