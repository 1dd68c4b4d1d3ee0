package pgdev

import (
	"net"
	"net/url"
	"strconv"
)

// superuser owns every cluster that this package initializes.
const superuser = "postgres"

const defaultPort = 5432

func socketURL(dir string, port int, db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: "", Path: "/" + db}
	u.RawQuery = url.Values{
		"host":    {dir},
		"port":    {strconv.Itoa(port)},
		"sslmode": {"disable"},
	}.Encode()
	return u.String()
}

func tcpURL(port int, secret, db string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, secret),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/" + db,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}
