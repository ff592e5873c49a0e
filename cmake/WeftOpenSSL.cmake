# SPDX-License-Identifier: Apache-2.0
# Shared secrets need the headers of OpenSSL 3 now, and its libcrypto when one is used. Sets
# WEFT_OPENSSL_FOUND and WEFT_OPENSSL_INCLUDE.
set(WEFT_OPENSSL_FOUND FALSE)
if(WEFT_OPENSSL)
    find_path(WEFT_OPENSSL_INCLUDE openssl/hmac.h)
    mark_as_advanced(WEFT_OPENSSL_INCLUDE)
    if(WEFT_OPENSSL_INCLUDE)
        include(CheckCSourceCompiles)
        set(CMAKE_REQUIRED_INCLUDES ${WEFT_OPENSSL_INCLUDE})
        check_c_source_compiles("#include <openssl/opensslv.h>
            _Static_assert(OPENSSL_VERSION_MAJOR >= 3, \"\"); int main(void) { return 0; }"
            WEFT_OPENSSL_IS_3)
        unset(CMAKE_REQUIRED_INCLUDES)
        set(WEFT_OPENSSL_FOUND ${WEFT_OPENSSL_IS_3})
    endif()
endif()

if(WEFT_OPENSSL_FOUND)
    set(note "built")
elseif(WEFT_OPENSSL STREQUAL "auto")
    set(note "left out: install libssl-dev (OpenSSL 3)")
elseif(WEFT_OPENSSL)
    message(FATAL_ERROR "-DWEFT_OPENSSL=${WEFT_OPENSSL}: the headers of OpenSSL 3 were not found, install libssl-dev")
else()
    set(note "left out: -DWEFT_OPENSSL=${WEFT_OPENSSL}")
endif()
set_property(GLOBAL APPEND PROPERTY WEFT_BACKEND_NOTES "shared secrets          ${note}")
