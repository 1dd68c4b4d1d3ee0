package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
)

// secretPrefix begins secrets as Standard Webhooks writes them.
const secretPrefix = "whsec_"

// How many bytes a secret has, by Standard Webhooks.
const (
	leastSecret = 24
	mostSecret  = 64
)

// Secrets returns the secrets that are in force, the newest first: at least one.
type Secrets func(context.Context) ([][]byte, error)

// ParseSecrets reads secrets, one a line, each as Standard Webhooks writes them (whsec_ and base64). Empty lines are none. The
// error holds nothing of them.
func ParseSecrets(text string) ([][]byte, error) {
	var list [][]byte
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		encoded, ok := strings.CutPrefix(line, secretPrefix)
		secret, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(secret) < leastSecret || len(secret) > mostSecret {
			return nil, fmt.Errorf("a secret is not %s and the base64 of %d to %d bytes", secretPrefix, leastSecret, mostSecret)
		}
		list = append(list, secret)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no secret")
	}
	return list, nil
}

// SecretsFromEnv are those of an environment variable.
func SecretsFromEnv(name string) Secrets {
	return func(context.Context) ([][]byte, error) {
		list, err := ParseSecrets(os.Getenv(name))
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", name, err)
		}
		return list, nil
	}
}

// SecretsFromFile are those of a file, which is read for each request: whoever rotates them writes it anew, and restarts nothing.
func SecretsFromFile(path string) Secrets {
	return func(context.Context) ([][]byte, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		list, err := ParseSecrets(string(text))
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", path, err)
		}
		return list, nil
	}
}

// AllSecrets are those of several sources, in their order.
func AllSecrets(sources ...Secrets) Secrets {
	return func(ctx context.Context) ([][]byte, error) {
		var all [][]byte
		for _, s := range sources {
			list, err := s(ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
		}
		return all, nil
	}
}

// signature is the header webhook-signature: one of each secret.
func signature(secrets [][]byte, id, timestamp string, body []byte) string {
	var list []string
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		list = append(list, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(list, " ")
}
