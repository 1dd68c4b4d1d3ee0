package dsn

import (
	"strings"
	"testing"
)

func TestNoErrorShowsAPassword(t *testing.T) {
	t.Parallel()
	const secret = "S3CRET"
	for _, text := range []string{
		"host=h password = " + secret + " sslmode=bogus",
		`host=h password='a\' ` + secret + `' port=x`,
		"host=h PASSWORD=" + secret + " sslmode=bogus",
		"host=h password=" + secret + " sslmode=bogus",
		"host=h password='" + secret + " port=1",
		"host=h password=a`: " + secret + " sslmode=bogus",
		"host=h password=a " + secret,
		"h:" + secret + "@host/db",
		"postgres://u:" + secret + "/x@h:1/db",
		"postgres://u:" + secret + "%zz@h/db",
		"postgres://u:" + secret + "@h:999999/db",
		"postgres://u:a@" + secret + "@h/db",
		"postgres://u:a@" + secret + "@h,other/db",
		"postgres://u:a@b@" + secret + "@h/db",
		"postgres://u@h/db?password=" + secret + "&port=x",
		"postgres://u:" + secret + "@h/db?connect_timeout=x",
		"mysql://u:" + secret + "@h/db",
	} {
		for name, read := range map[string]func(string) error{
			"pool": func(s string) error { _, err := Pool(s); return err },
			"one":  func(s string) error { _, err := One(s); return err },
		} {
			err := read(text)
			if err == nil || strings.Contains(err.Error(), secret) || !strings.HasPrefix(err.Error(), "the connection string cannot be read: ") {
				t.Errorf("%s of %s: %v", name, text, err)
			}
		}
	}
	if _, err := Pool("postgres://u:" + secret + "@h/db?pool_max_conns=x"); err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "pool_max_conns") {
		t.Errorf("%v", err)
	}
}

func TestWhatCanBeReadIsRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"postgres://u:p%40x@h/db?pool_max_conns=3", "host=/tmp/a@b user=u", "host=@abstract user=u", "user=u password='a@b' host=h",
	} {
		if _, err := Pool(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if cfg, err := One("postgres://u:p%40x@h/db"); err != nil || cfg.Password != "p@x" || cfg.Host != "h" {
		t.Errorf("%v", err)
	}
}
