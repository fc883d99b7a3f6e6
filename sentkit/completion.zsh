#compdef sentkit
_sentkit() {
    local program="${${(Q)words[1]}/#\~/$HOME}"
    local -a found suffix
    found=("${(@f)$(_SENTKIT_COMPLETE=zsh "$program" "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        [[ "${found[1]}" != *= ]] || suffix=(-S '')
        _describe sentkit found "${suffix[@]}"
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef _sentkit sentkit
