// The site has a module of its own: what renders it concerns nothing else.
module github.com/zc-relay/zc-relay/tools/site

go 1.26.0

require (
	github.com/alecthomas/chroma/v2 v2.27.0
	github.com/yuin/goldmark v1.8.7
)

require github.com/dlclark/regexp2/v2 v2.2.1 // indirect
