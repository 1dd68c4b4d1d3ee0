# Stands beside a PostgreSQL server and reads what its owner has to say. When
# the owner ends without a word, the pipe breaks: stop the server and remove
# the temporary directories, which are the arguments.
pid=0
while read -r word arg; do
  case $word in
    watch) pid=$arg ;;
    release) exit 0 ;;
  esac
done
if [ "$pid" -gt 0 ]; then
  n=0
  kill -INT "$pid" 2>/dev/null
  # Bounded, because a dead process whose parent does not wait for it seems
  # alive for ever.
  while kill -0 "$pid" 2>/dev/null && [ "$n" -lt 100 ]; do
    sleep 0.1
    n=$((n + 1))
    if [ "$n" -eq 50 ]; then kill -QUIT "$pid" 2>/dev/null; fi
  done
  # Only if it would not go: otherwise the number may be somebody else's by now.
  if [ "$n" -ge 100 ]; then kill -KILL "$pid" 2>/dev/null; fi
fi
rm -rf -- "$@"
