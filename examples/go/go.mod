module kvstrata

go 1.19
