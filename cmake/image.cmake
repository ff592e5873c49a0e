# SPDX-License-Identifier: Apache-2.0
# The bytes of the file IMAGE as the C array NAME, in the file CODE.
file(READ ${IMAGE} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${CODE} "extern const unsigned char ${NAME}[];\n_Alignas(64) const unsigned char ${NAME}[] = {\n${bytes}};\n")
