package api

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// typeNull is JSON's null, for a schema.
const typeNull = "null"

// describeNulls says of each object that may be missing that it may be null: huma says that of texts, numbers and lists, and of an object in
// another nothing but what it is.
func describeNulls(schemas huma.Registry) {
	for name, schema := range schemas.Map() {
		t := schemas.TypeFromRef(schemaPrefix + name)
		if t == nil || t.Kind() != reflect.Struct {
			continue
		}
		for _, f := range reflect.VisibleFields(t) {
			property, omitted := jsonName(f)
			described := schema.Properties[property]
			if f.Type.Kind() == reflect.Pointer && !omitted && described != nil && described.Ref != "" {
				schema.Properties[property] = &huma.Schema{Description: described.Description, AnyOf: []*huma.Schema{{Ref: described.Ref}, {Type: typeNull}}}
			}
		}
	}
}

// jsonName is a field's name in JSON, "" where it has none, and whether it is left out where it is empty.
func jsonName(f reflect.StructField) (name string, omitted bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" || name == "-" || !f.IsExported() {
		return "", true
	}
	return name, strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
}
