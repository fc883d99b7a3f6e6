function __sentkit_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -l found (env _SENTKIT_COMPLETE=fish $words[1] $words "$token" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path "$token"
    end
end
complete --command sentkit --no-files --arguments '(__sentkit_complete)'
