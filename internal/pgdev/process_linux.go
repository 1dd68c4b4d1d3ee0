package pgdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel ask the child for a fast shutdown when we end.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var children []int
	for _, path := range stats {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid …: the name may contain anything, so the fields
		// are counted from its last parenthesis.
		text := string(content)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		var child int
		if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(path)), "%d", &child); err == nil {
			children = append(children, child)
		}
	}
	return children
}
