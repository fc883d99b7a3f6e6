_sentkit_complete() {
    local program="${1/#\~/$HOME}" IFS=$'\n'
    COMPREPLY=($(_SENTKIT_COMPLETE=bash "$program" "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
    [[ "${COMPREPLY[0]}" != *= ]] || compopt -o nospace
}
complete -o default -F _sentkit_complete sentkit
